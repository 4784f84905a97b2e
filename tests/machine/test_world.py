"""The rank and world size from the environment, and the placement from flags."""

import contextlib
import os

import pytest

from tfm.errors import UsageError
from tfm.machine.processes import Placement
from tfm.machine.world import World, current_world, set_slurm_master

TORCHRUN = {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}
SLURM = {
    "SLURM_PROCID": 9,
    "SLURM_STEP_NUM_TASKS": 20,
    "SLURM_LOCALID": 1,
    "SLURM_STEP_TASKS_PER_NODE": "8(x2),4",
    "SLURM_NODEID": 1,
}
MASTER = {"MASTER_ADDR": "host", "MASTER_PORT": 29500}
STEP = {
    **SLURM,
    "SLURM_JOB_ID": 7,
    "SLURM_STEP_ID": 0,
    "SLURM_STEP_NODELIST": "node[03-07,12],gpu1",
}
BATCH = {  # the batch script of the job, which is no step
    "SLURM_JOB_ID": 7,
    "SLURM_NTASKS": 20,
    "SLURM_TASKS_PER_NODE": "8(x2),4",
    "SLURM_NODELIST": "node[03-07]",
    "SLURM_PROCID": 0,
    "SLURM_LOCALID": 0,
    "SLURM_NODEID": 0,
}
# A shell that salloc starts in a separate step.
SHELL = {
    **STEP,
    "SLURM_STEP_ID": 4294967290,
    "SLURM_PROCID": 0,
    "SLURM_LOCALID": 0,
    "SLURM_NODEID": 0,
    "SLURM_STEP_NUM_TASKS": 1,
    "SLURM_STEP_TASKS_PER_NODE": 1,
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in (*TORCHRUN, *STEP, *BATCH, *MASTER, "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.setenv(name, "")  # so that a value that a test sets goes, too
        monkeypatch.delenv(name)


@pytest.fixture
def set_variables(monkeypatch):
    def set_all(**variables):
        for name, value in variables.items():
            if value is not None:
                monkeypatch.setenv(name, str(value))

    return set_all


@pytest.mark.parametrize("variables", [{}, TORCHRUN, SLURM, BATCH, SHELL])
def test_what_is_no_step_of_several_tasks_is_a_single_process(set_variables, variables):
    set_variables(**variables)
    set_slurm_master()
    world = World.from_environment()
    assert (world.rank, world.size, world.is_first, world.launcher) == (0, 1, True, None)


@pytest.mark.parametrize("others", [{}, STEP])
def test_torchrun_sets_the_rank_also_in_a_step_of_slurm(set_variables, others):
    set_variables(**others, **TORCHRUN, **MASTER)
    set_slurm_master()
    expected = World(rank=5, size=8, local_rank=1, local_size=4, launcher="torchrun")
    assert current_world() == World.from_environment() == expected
    assert not expected.is_first


@pytest.mark.parametrize(("node", "tasks"), [(0, 8), (1, 8), (2, 4)])
def test_slurm_sets_the_rank(set_variables, node, tasks):
    set_variables(**{**SLURM, "SLURM_NODEID": node}, **MASTER)
    expected = World(rank=9, size=20, local_rank=1, local_size=tasks, launcher="Slurm")
    assert World.from_environment() == expected


@pytest.mark.parametrize(
    ("variables", "pattern"),
    [
        ({**TORCHRUN, "RANK": "first"}, "torchrun .*RANK=first, .*: these must be numbers"),
        ({**TORCHRUN, "RANK": 8}, "torchrun sets RANK=8, WORLD_SIZE=8, .*contradict each other"),
        ({**TORCHRUN, "LOCAL_RANK": 4}, "LOCAL_RANK=4, LOCAL_WORLD_SIZE=4, .*contradict"),
        ({**TORCHRUN, "MASTER_PORT": None}, "are set, but not MASTER_PORT: start"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": ""}, "Slurm sets .*: these must be numbers"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "8(x2"}, "Slurm sets .*: these must be numbers"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "8(x1)"}, "Slurm sets .*: these must be numbers"),
    ],
)
def test_variables_that_describe_no_world_are_refused(set_variables, variables, pattern):
    set_variables(**{**MASTER, **variables})
    with pytest.raises(UsageError, match=pattern):
        World.from_environment()


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node[03-07,12],gpu1", "node03"),
        ("gpu1,node[03-07,12]", "gpu1"),
        ("node[12,03-07]", "node12"),
        ("rack[1-2]node[0-3]-ib,gpu1", "rack1node0-ib"),
        ("host.example.org", "host.example.org"),
    ],
)
def test_the_processes_of_a_step_meet_at_its_first_host(set_variables, nodes, first):
    set_variables(**{**STEP, "SLURM_STEP_NODELIST": nodes})
    set_slurm_master()
    assert os.environ["MASTER_ADDR"] == first
    assert World.from_environment() == World(
        rank=9, size=20, local_rank=1, local_size=8, launcher="Slurm"
    )


def test_the_port_differs_between_steps_and_is_that_of_the_user_if_it_is_set(set_variables):
    ports = set()
    for job, step in [(7, 0), (7, 1), (8, 0)]:
        set_variables(**{**STEP, "SLURM_JOB_ID": job, "SLURM_STEP_ID": step})
        os.environ.pop("MASTER_PORT", None)
        set_slurm_master()
        ports.add(int(os.environ["MASTER_PORT"]))
    assert len(ports) == 3
    assert all(20_000 <= port < 30_000 for port in ports)
    set_variables(**MASTER)
    set_slurm_master()
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("host", "29500")


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
        ({"processes": 2, "device": "cuda", "shares_gpus": True}, Placement(local_size=2)),
        ({"gpus": "2", "shares_gpus": True}, Placement(local_size=2, device="cuda")),
    ],
)
def test_a_layout_is_built_from_flags(flags, placement):
    assert Placement.from_flags(**flags) == placement


def test_all_problems_of_the_flags_are_listed_together():
    with pytest.raises(UsageError) as refused:
        Placement.from_flags(gpus="all", processes=0, restarts=-1)
    assert len(str(refused.value).split("; ")) == 4


@pytest.mark.parametrize(
    ("placement", "world", "is_accepted"),
    [
        (Placement(local_size=4), World(size=4, local_size=4), True),
        (Placement(local_size=None, device="cuda"), World(size=3, local_size=3), True),
        (Placement(), World(size=8, local_size=4), True),
        (Placement(local_size=4), World(size=8, local_size=4), False),
        (Placement(local_size=8, device="cuda"), World(size=2, local_size=2), False),
        (Placement(local_size=None, device="cuda"), World(size=2, local_size=1), False),
        (Placement(restarts=1), World(size=2, local_size=2), False),
    ],
)
def test_a_launcher_must_have_started_the_processes_of_the_flags(placement, world, is_accepted):
    refused = pytest.raises(UsageError, match=r"has started .* but the flags ask for")
    with contextlib.nullcontext() if is_accepted else refused:
        placement.check(world)


@pytest.mark.parametrize(("size", "is_accepted"), [(2, True), (4, False)])
def test_torchrun_must_be_able_to_restart_several_machines(monkeypatch, size, is_accepted):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "")
    refused = pytest.raises(UsageError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
    with contextlib.nullcontext() if is_accepted else refused:
        Placement().check(World(size=size, local_size=2))
