"""The rank and world size from the environment, and the placement from flags."""

import re

import pytest

from tfm.errors import UsageError
from tfm.machine.processes import Placement
from tfm.machine.world import World, current_world

TORCHRUN = {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}
SLURM = {
    "SLURM_PROCID": 9,
    "SLURM_STEP_NUM_TASKS": 20,
    "SLURM_LOCALID": 1,
    "SLURM_STEP_TASKS_PER_NODE": "8(x2),4",
    "SLURM_NODEID": 1,
}
MASTER = {"MASTER_ADDR": "host", "MASTER_PORT": 29500}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in (*TORCHRUN, *SLURM, *MASTER):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def set_variables(monkeypatch):
    def set_all(**variables):
        for name, value in variables.items():
            if value is not None:
                monkeypatch.setenv(name, str(value))

    return set_all


def test_without_a_launcher_there_is_one_process():
    world = World.from_environment()
    assert (world.rank, world.size, world.is_first, world.launcher) == (0, 1, True, None)


def test_torchrun_sets_the_rank(set_variables):
    set_variables(**TORCHRUN, **MASTER)
    expected = World(rank=5, size=8, local_rank=1, local_size=4, launcher="torchrun")
    assert current_world() == World.from_environment() == expected
    assert not expected.is_first


@pytest.mark.parametrize(("node", "tasks"), [(0, 8), (1, 8), (2, 4)])
def test_slurm_sets_the_rank(set_variables, node, tasks):
    set_variables(**{**SLURM, "SLURM_NODEID": node}, **MASTER)
    expected = World(rank=9, size=20, local_rank=1, local_size=tasks, launcher="Slurm")
    assert World.from_environment() == expected


@pytest.mark.parametrize("variables", [TORCHRUN, SLURM])
def test_variables_count_only_with_a_master_address(set_variables, variables):
    set_variables(**variables)
    assert World.from_environment() == World()


@pytest.mark.parametrize(
    ("variables", "pattern"),
    [
        ({**TORCHRUN, "RANK": "first"}, "torchrun .*RANK=first, .*: these must be numbers"),
        ({**TORCHRUN, "RANK": 8}, "torchrun sets RANK=8, WORLD_SIZE=8, .*contradict each other"),
        ({**TORCHRUN, "LOCAL_RANK": 4}, "LOCAL_RANK=4, LOCAL_WORLD_SIZE=4, .*contradict"),
        ({**TORCHRUN, "MASTER_PORT": None}, "no port to meet at: set MASTER_PORT"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": ""}, "Slurm sets .*: these must be numbers"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "8(x2"}, "Slurm sets .*: these must be numbers"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "8(x1)"}, "Slurm sets .*: these must be numbers"),
    ],
)
def test_variables_that_describe_no_world_are_refused(set_variables, variables, pattern):
    set_variables(**{**MASTER, **variables})
    with pytest.raises(UsageError, match=pattern):
        World.from_environment()


@pytest.mark.parametrize("names", [("RANK", "WORLD_SIZE"), ("LOCAL_RANK",)])
def test_incomplete_variables_of_torchrun_are_refused(set_variables, names):
    set_variables(**{name: TORCHRUN[name] for name in names}, **MASTER)
    with pytest.raises(UsageError) as refused:
        World.from_environment()
    missing = {
        name for name in TORCHRUN if f" {name}" in str(refused.value).partition("but not")[2]
    }
    assert missing == {*TORCHRUN} - {*names}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"MASTER_ADDR": "host", "RANK": 1, "WORLD_SIZE": 2},
        {**MASTER, **TORCHRUN, "RANK": "first"},
        {**MASTER, **SLURM, "SLURM_STEP_TASKS_PER_NODE": ""},
    ],
)
def test_variables_that_describe_no_world_are_a_single_process_elsewhere(set_variables, variables):
    set_variables(**variables)
    assert current_world() == World()


# --- placements


@pytest.mark.parametrize(
    ("flags", "placement"),
    [
        ({}, Placement()),
        ({"gpus": "8"}, Placement(local_size=8, device="cuda")),
        ({"gpus": "auto", "device": "cuda"}, Placement(local_size=None, device="cuda")),
        ({"processes": 2, "device": "auto"}, Placement(local_size=2, device="cpu")),
        (
            {"nodes": 2, "node_rank": 1, "rendezvous": "host.example.org:29500"},
            Placement(nodes=2, node_rank=1, rendezvous="host.example.org:29500"),
        ),
        (
            {"nodes": 2, "node_rank": 0, "rendezvous": "[fe80::1]:1"},
            Placement(nodes=2, node_rank=0, rendezvous="[fe80::1]:1"),
        ),
        ({"nodes": 1, "node_rank": 0}, Placement()),
    ],
)
def test_a_layout_is_built_from_flags(flags, placement):
    assert Placement.from_flags(**flags) == placement


@pytest.mark.parametrize("rendezvous", ["host", ":1", "host:0", "host:65536", "::1:29500"])
def test_a_rendezvous_without_host_or_valid_port_is_refused(rendezvous):
    with pytest.raises(UsageError, match=re.escape(f"--rendezvous is {rendezvous}, but must be")):
        Placement.from_flags(nodes=2, node_rank=0, rendezvous=rendezvous)


def test_all_problems_of_the_flags_are_listed_together():
    with pytest.raises(UsageError) as refused:
        Placement.from_flags(gpus="all", processes=0, nodes=2, node_rank=2, rendezvous="host")
    assert len(str(refused.value).split("; ")) == 5


@pytest.mark.parametrize(
    ("placement", "world"),
    [
        (Placement(local_size=4, nodes=2), World(size=8, local_size=4)),
        (Placement(local_size=None, device="cuda"), World(size=3, local_size=3)),
        (Placement(), World(size=8, local_size=4)),
    ],
)
def test_a_launcher_that_started_the_processes_of_the_layout_is_accepted(placement, world):
    placement.check(world)


@pytest.mark.parametrize(
    ("placement", "world"),
    [
        (Placement(local_size=4, nodes=2), World(size=4, local_size=4)),
        (Placement(local_size=8, device="cuda"), World(size=2, local_size=1)),
        (Placement(local_size=None, device="cuda"), World(size=2, local_size=1)),
    ],
)
def test_a_launcher_that_started_other_processes_is_refused(placement, world):
    with pytest.raises(UsageError, match=r"has started .* but the flags ask for"):
        placement.check(world)
