"""Launch scripts, run with stand-ins for the clients of cloud and cluster.

A stand-in records its arguments, and fails on request. Remote commands run in a local
shell.
"""

import json
import os
import pathlib
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[1]
LAUNCH = ROOT / "launch"
SCRIPTS = [*sorted(LAUNCH.glob("*.sh")), LAUNCH / "slurm.sbatch"]

# Words that an unquoted shell, a careless template or Kubernetes would change.
AWKWARD = [
    "--config.phases[0].steps=10",
    "two  words",
    "it's",
    '"quoted"',
    "$HOME $$ $(HOME) `date`",
    "back\\slash",
    "*",
    "~",
    "a;b&c|d>e",
    "{a,b}",
    "{args.name}",
    "!x",
    "# no comment",
    "- [x]: y",
    "ü",
    "",
    "--",
]
PROGRAM = ["python", "-m", "bert_jax.run.pretrain", *AWKWARD]

STAND_IN = f"""#!{sys.executable} -IS
import json, os, sys
name = os.path.basename(sys.argv[0])
stdin = sys.stdin.read() if name == "kubectl" else ""
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps([[name, *sys.argv[1:]], stdin]) + "\\n")
statuses = os.environ.get("STATUS_" + name, "0").split(",")
count = sum(json.loads(line)[0][0] == name for line in open(os.environ["CALLS"]))
sys.exit(int(statuses[min(count, len(statuses)) - 1]))
"""

# Like sbatch, run a copy of the script in the folder of the caller.
SBATCH = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
cp "$1" "$SPOOL/slurm_script"
shift
SLURM_JOB_ID=17 exec bash "$SPOOL/slurm_script" "$@"
"""


class Launched:
    """Runner of commands with the stand-ins first on the PATH."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.calls_file = folder, folder / "calls"
        self.bin, self.home = folder / "bin", folder / "home"
        self.bin.mkdir()
        self.home.mkdir()
        names = "gcloud kubectl xpk srun scontrol sudo python python3 python3.11"
        for name in names.split():
            self.stand_in(self.bin / name)
        self.stand_in(self.bin / "sbatch", SBATCH)

    def stand_in(self, path, text=STAND_IN):
        path.write_text(text)
        path.chmod(0o755)

    def environment(self, **more) -> dict[str, str]:
        return {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(self.home),
            "CALLS": str(self.calls_file),
            "SPOOL": str(self.folder),
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_GLOBAL": os.devnull,
            **more,
        }

    def __call__(self, *command, cwd=ROOT, **environment):
        self.calls_file.write_text("")
        result = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )
        result.calls = self.calls()
        return result

    def calls(self) -> list[list[str]]:
        lines = self.calls_file.read_text().splitlines()
        return [json.loads(line)[0] for line in lines]

    def stdin(self) -> str:
        return json.loads(self.calls_file.read_text())[1]


@pytest.fixture
def launched(tmp_path):
    return Launched(tmp_path)


def tpu_vm(action, *arguments):
    return ["bash", "launch/tpu_vm.sh", action, "--name=bert", "--zone=z", *arguments]


def xpk(*arguments):
    flags = ["--name=bert", "--cluster=c", "--type=v6e-64", "--image=r/i:1"]
    return ["bash", "launch/xpk.sh", *flags, *arguments]


def gke(*arguments):
    flags = ["--name=bert", "--image=r/i:1", "--accelerator=tpu-v6e-slice"]
    script = [sys.executable, "launch/gke/render.py"]
    return [*script, *flags, "--topology=8x8", *arguments]


def slurm(*arguments):
    return ["sbatch", "--nodes=4", "launch/slurm.sbatch", *arguments]


VM = "gcloud compute tpus tpu-vm"
QUEUED = "gcloud compute tpus queued-resources"
SSH = f"{VM} ssh bert --zone=z"
CASES = {
    "create": (
        tpu_vm("create", "--type=v4-128"),
        f"{VM} create bert --zone=z --accelerator-type=v4-128 "
        "--version=tpu-ubuntu2204-base",
    ),
    "create spot": (
        tpu_vm("create", "--type=v6e-64", "--spot", "--project=my project"),
        f"{VM} create bert --zone=z '--project=my project' --accelerator-type=v6e-64 "
        "--version=v2-alpha-tpuv6e --spot",
    ),
    "queue": (
        tpu_vm("queue", "--type=v9-8", "--runtime=some thing", "--spot"),
        f"{QUEUED} create bert --zone=z --node-id=bert --accelerator-type=v9-8 "
        "'--runtime-version=some thing' --spot",
    ),
    "status": (tpu_vm("status", "--queued"), f"{QUEUED} describe bert --zone=z"),
    "logs": (
        tpu_vm("logs", "--worker=3"),
        f"{SSH} --worker=3 '--command=tail -n 100 -F bert_jax.log'",
    ),
    "delete": (tpu_vm("delete"), f"{VM} delete bert --zone=z"),
    "delete queued": (
        tpu_vm("delete", "--queued"),
        f"{QUEUED} delete bert --zone=z --force",
    ),
    # The remote commands of these are run by the tests further down.
    "install": (tpu_vm("install", "--repo=u r l", "--commit=c0ffee1"), None),
    "run": (tpu_vm("run", "--", *PROGRAM), None),
    "xpk": (xpk("--zone=z", "--project=p", "--spot", "--", *PROGRAM), None),
    "slurm": (
        slurm("--", *PROGRAM),
        "srun --gpu-bind=none --kill-on-bad-exit=0 --wait=180 --cpus-per-task=8 "
        + shlex.join(PROGRAM),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_real_dry_and_failed_run(launched, case):
    """The dry run prints the command of the real run, quoted for a shell."""
    command, expected = CASES[case]
    environment = {"SLURM_CPUS_PER_TASK": "8"}
    real = launched(*command, **environment)
    assert real.returncode == 0, real.stderr
    assert len(real.calls) == 1
    if expected:
        assert real.calls[0] == shlex.split(expected)

    at = command.index("--") if "--" in command else len(command)
    dry = launched(*command[:at], "--dry_run", *command[at:], **environment)
    assert (dry.returncode, dry.stderr, dry.calls) == (0, "", [])
    pasted = launched("bash", "-c", dry.stdout, **environment)
    assert pasted.calls == real.calls

    name = real.calls[0][0]
    failed = launched(*command, **{f"STATUS_{name}": "2"})
    assert failed.returncode == 2
    assert len(failed.calls) == 1
    if name != "srun":  # restart.sh reports failures of srun
        [line] = [x for x in failed.stderr.splitlines() if x.startswith("error: ")]
        assert "exit status 2 of: " in line and name in line


MISTAKES = [
    (["bash", "launch/tpu_vm.sh"], "there is no action"),
    (["bash", "launch/tpu_vm.sh", "crate"], "unknown action 'crate'"),
    (["bash", "launch/tpu_vm.sh", "status", "--zone=z"], "--name is missing"),
    (tpu_vm("create", "--type=v9-8"), "no runtime is known for v9-8"),
    (tpu_vm("create", "--type=v4-8", "--worker=1"), "'--worker=1' of create"),
    (tpu_vm("run"), "there is no program"),
    # Bash would read it as an octal number, and a bad one.
    (tpu_vm("run", "--max_restarts=08", "--", "python"), "takes a whole number"),
    (tpu_vm("install", "--commit=main", "--repo=r"), "takes the hash of a commit"),
    (xpk("--", "python", "-c", "a\nb"), "several lines"),
    (slurm("--nodes=4", "--", "python"), "unknown argument '--nodes=4'"),
    (["bash", "launch/slurm.sbatch", "--", "python"], "this is no job of Slurm; give"),
    (tpu_vm("stop", "--name", "bert"), "'--name' of stop; flags are --NAME=VALUE, "),
    (["bash", "launch/restart.sh", "--detach", "--", "true"], "--log is missing"),
    (["bash", "launch/restart.sh"], "there is no command"),
    (["bash", "launch/restart.sh", "--log=a", "--", "true"], "--log goes with"),
    (["bash", "launch/restart.sh", "--detach", "--log=.", "--", "true"], "is a folder"),
    (
        ["bash", "launch/restart.sh", "--signal=TERM", "--log=a", "--", "true"],
        "--signal takes no command",
    ),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES)
def test_mistakes_are_reported_in_one_line(launched, command, message):
    result = launched(*command)
    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ") and message in line
    assert result.calls == []


@pytest.mark.parametrize(
    "script",
    [path for path in SCRIPTS if path.name != "common.sh"],
    ids=lambda path: path.name,
)
def test_help(launched, script):
    result = launched("bash", script, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "--dry_run" in result.stdout and f"launch/{script.name}" in result.stdout
    [flags] = re.findall(r'^parse (.*) "\$@"$', script.read_text(), re.MULTILINE)
    for flag in re.findall(r"\b\w+", re.sub(r"\$\w+", "", flags)):
        assert f"--{flag}" in result.stdout
    assert "#SBATCH" not in result.stdout and "set -e" not in result.stdout


def test_shellcheck():
    shellcheck = shutil.which("shellcheck", path=pathlib.Path(sys.executable).parent)
    shellcheck = shellcheck or shutil.which("shellcheck")
    if not shellcheck:
        pytest.skip("there is no shellcheck")
    got = subprocess.run([shellcheck, *SCRIPTS], capture_output=True, text=True)
    assert got.returncode == 0, got.stdout + got.stderr


# restart.sh


def restart(launched, *arguments, **environment):
    return launched("bash", "launch/restart.sh", "--pause=0", *arguments, **environment)


@pytest.mark.parametrize(
    ("statuses", "flags", "calls", "status"),
    [
        ("1,134,0", [], 3, 0),
        ("1,2", [], 2, 2),
        ("75,75,75,75,0", ["--max_restarts=0"], 5, 0),
        ("1,75", ["--return_75"], 2, 75),
        ("7", ["--max_restarts=2"], 3, 7),
        # A stop between two crashes begins a new count.
        ("7,75,7,0", ["--max_restarts=1"], 4, 0),
        # Crashes after a long time, here any, are no crashes in a row.
        ("7,7,7,0", ["--max_restarts=1", "--steady_seconds=0"], 4, 0),
    ],
)
def test_restart(launched, statuses, flags, calls, status):
    result = restart(launched, *flags, "--", *PROGRAM, STATUS_python=statuses)
    assert result.calls == [PROGRAM] * calls
    assert result.returncode == status
    assert result.stderr.count("restart.sh: exit status") == calls
    gave_up = "gave up after" in result.stderr
    assert gave_up == (status == 7)


# Saves when it is asked to, and says so; prints on USR1. It ends by itself in the end.
SAVES = (
    "trap 'echo saved; exit 75' TERM; trap 'echo stacks' USR1; echo started; "
    "for _ in {1..600}; do sleep 0.05; done"
)


def test_restart_pauses_and_gives_up_on_a_missing_command(launched):
    launched.stand_in(launched.bin / "sleep")
    result = restart(launched, "--pause=7", "--", "python", STATUS_python="1,75,0")
    pause = ["sleep", "7"]
    assert result.calls == [["python"], pause, ["python"], pause, ["python"]]
    result = restart(launched, "--max_restarts=1", "--", "no_such_command")
    assert result.returncode == 127 and "gave up" in result.stderr


def wait_for(condition):
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit, "this takes too long"
        time.sleep(0.02)


@pytest.mark.parametrize("program", [["bash", "-c", SAVES], ["false"]], ids=str)
def test_restart_passes_signals_on(launched, tmp_path, program):
    """While the program runs, and while it waits before it starts it again."""
    log = tmp_path / "log"
    is_running = program != ["false"]
    command = ["bash", "launch/restart.sh", "--pause=60", "--", *program]
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=launched.environment(), stdout=file, stderr=file
        )
        expected = "started" if is_running else "starting again in 60 s"
        wait_for(lambda: expected in log.read_text())
        if is_running:
            process.send_signal(signal.SIGUSR1)
            wait_for(lambda: "stacks" in log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 75
    text = log.read_text()
    assert text.count("started") == text.count("saved") == is_running
    assert ("exit status 75" in text) == is_running


def test_restart_stops_a_program_that_has_just_begun(launched, tmp_path):
    """A request arrives after the fork, before the loop has the program's pid."""
    script = tmp_path / "env.sh"
    stops = "[[ $BASH_COMMAND != child=?! ]] || { kill $$; sleep 0.2; }"
    script.write_text(f"trap '{stops}' DEBUG\n")
    result = restart(launched, "--", "sleep", "60", BASH_ENV=str(script))
    assert "exit status 143" in result.stderr


def holds(lock: pathlib.Path) -> bool:
    return subprocess.run(["flock", "-n", lock, "true"]).returncode != 0


# Commands that tpu_vm.sh runs on the workers.


@pytest.fixture
def worker(launched):
    """Return the home of a worker with an installed checkout."""
    checkout = launched.home / "bert_jax"
    shutil.copytree(LAUNCH, checkout / "launch")
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    launched.stand_in(programs / "python")

    def run(command, **environment):
        [call] = launched(*command).calls
        remote = call[-1].removeprefix("--command=")
        return launched("bash", "-c", remote, cwd=launched.home, **environment)

    run.log = launched.home / "bert_jax.log"
    return run


def test_run_on_a_worker(launched, worker):
    (launched.bin / "python").unlink()  # it has to be the one of the checkout
    command = tpu_vm("run", "--max_restarts=3", "--", *PROGRAM)
    result = worker(command, STATUS_python="0")
    # The shell came back at once, and what it started goes on.
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    wait_for(lambda: "exit status 0" in worker.log.read_text())
    assert launched.calls() == [PROGRAM]
    wait_for(lambda: not holds(launched.home / "bert_jax.log.lock"))
    stopped = worker(tpu_vm("stop"))
    assert (stopped.returncode, stopped.stdout) == (0, "nothing runs\n")


def test_one_run_at_a_time_with_stacks_and_stop(launched, worker):
    command = tpu_vm("run", "--", "bash", "-c", SAVES)
    assert worker(command).returncode == 0
    wait_for(lambda: "started" in worker.log.read_text())
    again = worker(command)
    assert again.returncode == 2 and "is still going on" in again.stderr

    assert worker(tpu_vm("stacks")).returncode == 0
    wait_for(lambda: "stacks" in worker.log.read_text())
    assert worker(tpu_vm("stop")).returncode == 0
    wait_for(lambda: "exit status 75" in worker.log.read_text())
    wait_for(lambda: not holds(launched.home / "bert_jax.log.lock"))

    # The same command continues, in the same log.
    assert worker(command).returncode == 0
    wait_for(lambda: worker.log.read_text().count("started") == 2)
    worker(tpu_vm("stop"))
    wait_for(lambda: not holds(launched.home / "bert_jax.log.lock"))
    assert worker.log.read_text().count("saved") == 2


def git(folder, *arguments):
    command = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.check_output(
        command, cwd=folder, env=environment, text=True
    ).strip()


def test_install_on_a_worker(launched, tmp_path):
    """Push from a local checkout to a repository, and install it on the worker."""
    shared, here = tmp_path / "sha red.git", tmp_path / "here"
    git(tmp_path, "init", "--quiet", "--bare", str(shared))
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(here))
    shutil.copytree(LAUNCH, here / "launch")
    shutil.copy(ROOT / "constraints.txt", here)
    # Without its own environment there, this is what pip would be.
    pip = here / ".venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    launched.stand_in(pip)
    git(here, "add", "--all")
    git(here, "commit", "--quiet", "--message=one")
    install = tpu_vm("install")

    result = launched(*install, cwd=here)
    assert result.returncode == 2 and "no remote 'origin'" in result.stderr
    git(here, "remote", "add", "origin", str(shared))
    result = launched(*install, cwd=here)
    assert result.returncode == 2 and "is on no remote branch" in result.stderr
    # The workers clone only the repository.
    git(tmp_path, "init", "--quiet", "--bare", "fork.git")
    git(here, "remote", "add", "fork", str(tmp_path / "fork.git"))
    git(here, "push", "--quiet", "fork", "main")
    assert "is on no remote branch" in launched(*install, cwd=here).stderr
    git(here, "push", "--quiet", "origin", "main")
    with open(here / "constraints.txt", "a") as stream:
        stream.write("# changed")
    assert "this checkout has changes" in launched(*install, cwd=here).stderr
    git(here, "checkout", "--quiet", "constraints.txt")
    (here / "launch" / "new.sh").touch()
    assert "this checkout has changes" in launched(*install, cwd=here).stderr
    (here / "launch" / "new.sh").unlink()
    (here / ".git").rename(tmp_path / "git")
    install_of_url = [*install, f"--repo={shared}"]
    assert "no checkout of git" in launched(*install_of_url, cwd=here).stderr
    (tmp_path / "git").rename(here / ".git")

    for round_ in range(2):  # anew, and over what is there
        if round_:
            git(here, "commit", "--quiet", "--allow-empty", "--message=two")
            git(here, "push", "--quiet", "origin", "main")
        [call] = launched(*install, cwd=here).calls
        assert call[:-1] == [*SSH.split(), "--worker=all"]
        remote = call[-1].removeprefix("--command=")
        done = launched("bash", "-c", remote, cwd=launched.home)
        assert done.returncode == 0, done.stderr
        checkout = launched.home / "bert_jax"
        assert git(checkout, "rev-parse", "HEAD") == git(here, "rev-parse", "HEAD")
        hugepages = "echo always > /sys/kernel/mm/transparent_hugepage/enabled"
        pip_flags = ["install", "--editable", ".[tpu,gcs]"]
        assert done.calls == [
            ["sudo", "sh", "-c", hugepages],
            ["pip", *pip_flags, "--constraint", "constraints.txt"],
        ]

    unknown = call[-1].replace(git(here, "rev-parse", "HEAD"), "0" * 40)
    remote = unknown.removeprefix("--command=")
    assert launched("bash", "-c", remote, cwd=launched.home).returncode != 0


def test_setup_creates_an_environment(launched, tmp_path):
    (tmp_path / "constraints.txt").touch()
    setup = ["bash", str(LAUNCH / "setup_worker.sh"), "--extra=cuda12", "--dry_run"]
    result = launched(*setup, cwd=tmp_path)
    assert (result.returncode, result.calls) == (0, [])
    pip = ".venv/bin/pip install --editable '.[cuda12]' --constraint constraints.txt"
    assert result.stdout.splitlines()[1:] == ["python3.11 -m venv .venv", pip]
    # Without Python 3.11; nor may the machine that tests have one.
    (launched.bin / "python3.11").unlink()
    for name in ("bash", "sh", "dirname", "awk"):
        (launched.bin / name).symlink_to(shutil.which(name))
    result = launched(*setup, cwd=tmp_path, PATH=str(launched.bin))
    assert result.stdout.splitlines()[1:] == [
        "python3 -m pip install --user uv",
        "python3 -m uv venv --clear --python=3.11 --seed .venv",
        pip,
    ]


def test_setup_stops_at_the_first_failure(launched, tmp_path):
    (tmp_path / "constraints.txt").touch()
    setup = ["bash", str(LAUNCH / "setup_worker.sh")]
    result = launched(*setup, cwd=tmp_path, STATUS_sudo="1")
    assert result.returncode == 1 and len(result.calls) == 1
    assert "error: exit status 1 of: sudo sh" in result.stderr


# GKE


def render(*arguments) -> int:
    """Call the program in this process, and return its exit status."""
    path = LAUNCH / "gke/render.py"
    try:
        return runpy.run_path(str(path))["main"](gke(*arguments)[2:])
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: program"),
        (["--topology=4x4x4", "--", "python"], "has topologies of 2 sides"),
        (["--topology=2x2", "--slices=2", "--", "python"], "each has several hosts"),
        (["--topology=1x1", "--", "python"], "has 1 chips, and a host has 4"),
        (["--topology=3x2", "--", "python"], "has 6 chips, and a host has 4"),
        (["--slices=0", "--", "python"], "an integer of at least 1, got '0'"),
        (["--name=Bert", "--", "python"], "lower-case letters"),
        (["--accelerator=tpu-v6e", "--", "python"], "expected one of tpu-v4-podslice,"),
        (["--", "python", os.fsdecode(b"\xff")], "arguments are not UTF-8"),
    ],
)
def test_mistakes_of_render(capsys, arguments, message):
    assert render(*arguments) == 2
    printed = capsys.readouterr()
    [line] = printed.err.splitlines()
    assert line.startswith("error: ") and message in line and not printed.out


@pytest.fixture
def jobset(capsys):
    def jobset(*arguments) -> dict:
        assert render("--dry_run", *arguments) == 0
        printed = capsys.readouterr()
        assert printed.err == "kubectl apply -f -\n"
        return yaml.safe_load(printed.out)

    return jobset


def expanded(word: str) -> str:
    """Expand a word of a command as Kubernetes does, without any variables.

    k8s.io/kubernetes/third_party/forked/golang/expansion: $$ is $, the rest stays.
    """
    return word.replace("$$", "$")


def test_jobset(jobset):
    made = jobset("--slices=2", "--max_restarts=3", "--", *PROGRAM)
    assert made["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert made["kind"] == "JobSet"
    assert made["metadata"]["name"] == "bert"
    assert made["spec"]["network"] == {"enableDNSHostnames": True}
    [slices] = made["spec"]["replicatedJobs"]
    assert slices["replicas"] == 2
    job = slices["template"]["spec"]
    assert job["completions"] == job["parallelism"] == 16  # 64 chips, 4 to a host
    assert job["completionMode"] == "Indexed" and job["backoffLimit"] == 0
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # a podFailurePolicy requires it
    assert pod["terminationGracePeriodSeconds"] > 60
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "8x8",
    }
    [container] = pod["containers"]
    assert container["image"] == "r/i:1"
    assert container["resources"] == {"limits": {"google.com/tpu": 4}}
    assert [expanded(word) for word in container["command"]] == PROGRAM


def test_jobset_action_by_exit_status(jobset):
    """The first rule of the Job that matches decides, by its index in the message.

    The text is that of pkg/controller/job/pod_failure_policy.go of Kubernetes. Without
    a match the reason is BackoffLimitExceeded, and JobSet restarts and counts.
    """
    spec = jobset("--", "python")["spec"]
    assert spec["failurePolicy"]["maxRestarts"] == 10
    job = spec["replicatedJobs"][0]["template"]["spec"]
    actions = []
    for i, rule in enumerate(job["podFailurePolicy"]["rules"]):
        assert rule["action"] == "FailJob"
        message = f"Container main for pod ns/bert-0 failed matching rule at index {i}"
        actions += next(
            [[rule.get("onExitCodes", rule.get("onPodConditions")), policy["action"]]]
            for policy in spec["failurePolicy"]["rules"]
            if policy["onJobFailureReasons"] == ["PodFailurePolicy"]
            and re.search(*policy.get("onJobFailureMessagePatterns", [""]), message)
        )
    mistake, stopped, disrupted = actions
    container = {"containerName": "main", "operator": "In"}
    assert mistake == [container | {"values": [2]}, "FailJobSet"]
    restart = "RestartJobSetAndIgnoreMaxRestarts"
    assert stopped == [container | {"values": [75]}, restart]
    assert disrupted == [[{"type": "DisruptionTarget", "status": "True"}], restart]


@pytest.mark.parametrize(
    ("flags", "hosts"),
    [
        (["--accelerator=tpu-v5p-slice", "--topology=4x4x8"], 32),
        (["--topology=2x4", "--chips_per_host=8"], 1),
    ],
)
def test_hosts_of_a_topology(jobset, flags, hosts):
    [slices] = jobset(*flags, "--", "python")["spec"]["replicatedJobs"]
    assert slices["template"]["spec"]["completions"] == hosts


def test_values_are_quoted_in_the_jobset(jobset):
    account, image = 'a: "b" # c', "r/i@sha256:$x"
    flags = [f"--service_account={account}", f"--image={image}", "--spot"]
    made = jobset(*flags, "--name=on", "--", "env", "--", "python")
    assert made["metadata"]["name"] == "on"  # which YAML would read as true
    pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account
    assert pod["containers"][0]["image"] == image
    assert pod["containers"][0]["command"] == ["env", "--", "python"]
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"


def test_jobset_goes_to_kubectl(launched):
    dry = launched(*gke("--dry_run", "--", *PROGRAM))
    real = launched(*gke("--", *PROGRAM))
    assert (real.returncode, real.calls) == (0, [["kubectl", "apply", "-f", "-"]])
    assert launched.stdin() == dry.stdout
    failed = launched(*gke("--", "python"), STATUS_kubectl="3")
    assert failed.returncode == 3


# xpk


def test_xpk(launched):
    flags = ["--slices=2", "--max_restarts=7", "--project=p", "--zone=z", "--spot"]
    [call] = launched(*xpk(*flags, "--", *PROGRAM)).calls
    assert call[:-1] == [
        *["xpk", "workload", "create", "--workload=bert", "--cluster=c"],
        *["--project=p", "--zone=z", "--tpu-type=v6e-64", "--num-slices=2", "--spot"],
        *["--docker-image=r/i:1", "--max-restarts=7"],
        *["--restart-on-exit-codes=1,3-126", "--termination-grace-period-seconds=120"],
        "--no-use-parallel-containers",
    ]
    # So xpk 1.16 puts it into YAML (core/docker_container.py).
    command = call[-1].removeprefix("--command=")
    lines = (
        f"script: |\n  echo $PPID >/dev/null;\n  ({command}) & PID=$!;\n  wait $PID\n"
    )
    script = expanded(yaml.safe_load(lines)["script"])
    assert launched("bash", "-c", script).calls == [PROGRAM]


def test_xpk_is_signalled_through(launched):
    """The process that xpk's shell signals is the program itself."""
    [call] = launched(*xpk("--", "bash", "-c", SAVES)).calls
    command = call[-1].removeprefix("--command=")
    script = (
        f"({command}; exit 3) >log & PID=$!; "
        "until grep -q started log; do sleep 0.05; done; "
        "kill $PID; wait $PID; status=$?; cat log; exit $status"
    )
    result = launched("bash", "-c", script, cwd=launched.home)
    assert (result.returncode, result.stdout) == (75, "started\nsaved\n")


# Slurm


@pytest.mark.parametrize(
    ("statuses", "calls", "requeued"), [("1,0", 2, False), ("137,1,75", 3, True)]
)
def test_slurm(launched, statuses, calls, requeued):
    command = slurm("--max_restarts=2", "--pause=0", "--", "python", "a b")
    result = launched(*command, STATUS_srun=statuses)
    assert result.returncode == int(statuses.split(",")[-1])
    steps = [call for call in result.calls if call[0] == "srun"]
    assert len(steps) == calls and steps[0][-2:] == ["python", "a b"]
    others = [call for call in result.calls if call[0] != "srun"]
    assert others == [["scontrol", "requeue", "17"]] * requeued


def test_failures_of_slurm(launched):
    command = slurm("--", "python")
    result = launched(*command, STATUS_srun="75", STATUS_scontrol="1")
    assert result.returncode == 1
    assert "error: exit status 1 of: scontrol requeue 17" in result.stderr


def test_slurm_asks_for_what_restarts_need():
    """Slurm reads only lines before the first command."""
    lines = (LAUNCH / "slurm.sbatch").read_text().splitlines()
    first = next(i for i, x in enumerate(lines) if x and not x.startswith("#"))
    wanted = {x.removeprefix("#SBATCH ") for x in lines[:first] if "#SBATCH" in x}
    assert {"--requeue", "--open-mode=append", "--signal=TERM@180"} <= wanted
    assert not any("#SBATCH" in line for line in lines[first:])


# The page


def test_commands_of_the_page(launched):
    text = (LAUNCH / "README.md").read_text()
    commands = "\n".join(re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    # The rest of the page is not about these scripts.
    script = (
        'set -e; pip() { :; }; python() { [[ $1 != launch/gke/* ]] || real "$@"; }\n'
        f'real() {{ {sys.executable} "$@"; }}\n{commands}\n'
    )
    # install's defaults depend on the checkout this is tested in
    install = " install $slice"
    script = script.replace(install, f"{install} --repo=r --commit=c0ffee1")
    result = launched("bash", "-c", script)
    assert result.returncode == 0, result.stderr
    actions = [call[4] for call in result.calls[:5]]
    assert actions == ["create", "ssh", "ssh", "ssh", "delete"]
    assert [call[0] for call in result.calls[5:]] == ["kubectl", "srun"]
    known = launched("bash", "launch/tpu_vm.sh", "--help").stdout
    for action in re.findall(r"tpu_vm\.sh (\w+)", text):
        assert f"\n  {action} " in known
