#!/usr/bin/env python3
r"""Run bert_jax on TPU node pools of GKE, as a JobSet.

  python launch/gke/render.py --name=NAME --image=IMAGE --accelerator=tpu-v6e-slice \
      --topology=8x8 [--FLAG=VALUE ...] -- PROGRAM ARGS...

Fills in jobset.yaml and passes it to `kubectl apply -f -`, or prints it with --dry_run.
Only Python and kubectl are needed.
"""

import argparse
import json
import math
import pathlib
import re
import shlex
import shutil
import string
import subprocess
import sys

TEMPLATE = pathlib.Path(__file__).with_name("jobset.yaml")
# Number of sides of a topology (GKE's page "Plan TPUs in GKE"). With another number or
# accelerator, pods would wait forever.
DIMENSIONS = {
    "tpu-v4-podslice": 3,
    "tpu-v5p-slice": 3,
    "tpu7x": 3,
    "tpu-v5-lite-podslice": 2,
    "tpu-v6e-slice": 2,
}
KUBECTL = ("kubectl", "apply", "-f", "-")


def render(values: argparse.Namespace) -> str:
    """Return the JobSet as YAML.

    Raises:
      ValueError: A value is invalid.
    """
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", values.name):
        raise ValueError(
            f"--name={values.name}: expected a lower-case letter, then up to 39 "
            "lower-case letters, digits and '-', without '-' at the end"
        )
    if not values.image.strip():
        raise ValueError("--image is empty; give a container image, --image=IMAGE")
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", values.topology):
        raise ValueError(
            f"--topology={values.topology}: expected a form such as 4x4 or 4x4x8"
        )
    sides = [int(side) for side in values.topology.split("x")]
    if values.accelerator not in DIMENSIONS:
        raise ValueError(
            f"--accelerator={values.accelerator}: expected one of "
            f"{', '.join(DIMENSIONS)}"
        )
    dimensions = DIMENSIONS[values.accelerator]
    if len(sides) != dimensions:
        raise ValueError(
            f"--topology={values.topology}: {values.accelerator} has topologies of "
            f"{dimensions} sides"
        )
    chips = math.prod(sides)
    hosts, left = divmod(chips, values.chips_per_host)
    if left:
        raise ValueError(
            f"--topology={values.topology} has {chips} chips, and a host has "
            f"{values.chips_per_host}; see --chips_per_host"
        )
    if values.slices > 1 and hosts == 1:
        raise ValueError(
            f"--slices={values.slices}: GKE takes several slices together only if each "
            f"has several hosts, and --topology={values.topology} has one"
        )
    selector = {
        "cloud.google.com/gke-tpu-accelerator": values.accelerator,
        "cloud.google.com/gke-tpu-topology": values.topology,
    }
    if values.spot:
        selector["cloud.google.com/gke-spot"] = "true"
    try:
        "".join(values.program).encode()
    except UnicodeEncodeError as error:
        raise ValueError("the program's arguments are not UTF-8") from error
    # Kubernetes replaces $(NAME) in a command, and $$ by $.
    command = [word.replace("$", "$$") for word in values.program]
    template = string.Template(TEMPLATE.read_text(encoding="utf-8"))
    return template.substitute(
        name=_yaml(values.name),
        image=_yaml(values.image),
        max_restarts=values.max_restarts,
        slices=values.slices,
        hosts=hosts,
        chips_per_host=values.chips_per_host,
        service_account=_yaml(values.service_account),
        node_selector=_yaml(selector),
        command=_yaml(command),
    )


def _yaml(value) -> str:
    # JSON is YAML, and quotes whatever needs it.
    return json.dumps(value, ensure_ascii=False)


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)


def _whole(least: int):
    def number(text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"expected an integer of at least {least}, got {text!r}"
            )
        return int(text)

    return number


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--name", required=True, help="of the JobSet")
    add("--image", required=True, help="container image with this repository")
    add("--accelerator", required=True, help="label of the nodes, tpu-v6e-slice")
    add("--topology", required=True, help="of a slice, in chips: 8x8 or 4x4x8")
    add("--chips_per_host", type=_whole(1), default=4, help="TPU chips of a node (4)")
    add("--slices", type=_whole(1), default=1, help="number of node pools (1)")
    add("--max_restarts", type=_whole(0), default=10, help="after crashes (10)")
    add("--service_account", default="default", help="of Kubernetes, for gs:// paths")
    add("--spot", action="store_true", help="use spot nodes")
    add("--dry_run", action="store_true", help="print the YAML instead of applying it")
    add("program", nargs="+", help="the program and its arguments, after --")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Apply the JobSet, or print it with --dry_run; return the exit status."""
    parser = _parser()
    values = parser.parse_args(arguments)
    try:
        manifest = render(values)
    except ValueError as error:
        parser.error(str(error))
    command = shlex.join(KUBECTL)
    if values.dry_run:
        # The command is for the reader; standard output can be piped into it.
        print(command, file=sys.stderr)
        print(manifest, end="")
        return 0
    if not shutil.which(KUBECTL[0]):
        parser.error("there is no kubectl on PATH")
    status = subprocess.run(KUBECTL, input=manifest.encode(), check=False).returncode
    if status:
        print(f"error: exit status {status} of: {command}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
