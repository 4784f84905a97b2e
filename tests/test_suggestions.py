"""The words of other toolkits lead to flags and commands that exist."""

import typer

from tfm.cli import main as cli
from tfm.cli import suggestions

COMMANDS = typer.main.get_command(cli.app).commands
LEAVES = [*COMMANDS.values(), *COMMANDS["bench"].commands.values()]


def names(command):
    return {name for p in command.params for name in (*p.opts, p.metavar)}


def test_every_word_leads_to_a_flag_that_a_command_has_under_no_such_name():
    for flag, words in suggestions._FLAG_WORDS.items():
        for word in words.split():
            assert any(
                flag in names(command) and f"--{word}" not in names(command) for command in LEAVES
            ), (flag, word)


def test_every_word_for_a_command_leads_to_a_command():
    for name, words in suggestions._COMMAND_WORDS.items():
        assert name in COMMANDS
        assert not set(words.split()) & set(COMMANDS)
