"""The words of other toolkits lead to flags and commands that exist."""

import typer

from tfm.cli import main as cli
from tfm.config.suggestions import words_of_toolkits

COMMANDS = typer.main.get_command(cli.app).commands


def names(command):
    """The flags and arguments of a command, without dashes."""
    return {
        (name or "").lower().removeprefix("--")
        for p in command.params
        for name in (*p.opts, p.metavar)
    }


def test_every_word_leads_to_a_flag_that_a_command_has_under_no_such_name():
    for flag, words in words_of_toolkits("flags").items():
        for word in words.split():
            assert any(
                flag in names(command) and word not in names(command)
                for command in COMMANDS.values()
            ), (flag, word)


def test_every_word_for_a_command_leads_to_a_command():
    for name, words in words_of_toolkits("commands").items():
        assert name in COMMANDS
        assert not set(words.split()) & set(COMMANDS)


def test_no_command_has_a_flag_that_is_said_to_be_needless():
    needless = {word for words in words_of_toolkits("needless_flags") for word in words.split()}
    assert not any(needless & names(command) for command in COMMANDS.values())
