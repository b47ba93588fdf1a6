r"""Train one small encoder in nine ways under one budget, fine-tune, and tabulate.

    mkdir text; cp novels/*.txt.gz text
    zcat wikipedia/wiki_*.gz | sed -e '/^$/d' -e 's/^<\/\?doc.*$//' \
        | gzip > text/wikipedia.txt.gz
    python -m bert_jax.run.train_tokenizer --input='text/*' --vocab_size=4096 \
        --output=tokenizer
    python -m bert_jax.run.build_corpus --input='text/*' --tokenizer=tokenizer \
        --output=corpus --held_out=0.01
    XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 \
        python benchmarks/compare_objectives.py --corpus=corpus --data=DIR --output=DIR

The recipe is configs/comparison.py. Under the budget "tokens" each objective has
`--steps` steps; under "compute" it has as many as take the processor seconds of BERT's.
If a step takes as long as BERT's, within 5 %, one run counts for both. The time of a
step is measured once, on one thread, all objectives in turns, after compilation,
batches included. It is processor time, which other work disturbs little.

The folder of `--data` has glue/{CoLA,SST-2,MRPC,STS-B}/{train,dev}.tsv and
squad/dev-v1.1.json as they are published, plain or compressed. Each task is trained on
`--examples` labelled examples at even distances in its file, and evaluated on its dev
set; SQuAD on as many questions of the first 38 articles of dev-v1.1, and evaluated on
as many of the last 10. "Frozen" trains the head and the pooler alone.

An interrupted run resumes, and a finished run is skipped. The tables go to standard
output, with "-" for missing runs; `--do=` prints the tables alone.
"""

import argparse
import itertools
import pathlib

import comparison_page
import comparison_runs as runs
import jax


def run_all(values: argparse.Namespace) -> None:
    """Pretrain and fine-tune runs that are not done, in a fixed order."""
    seeds_and_budgets = list(itertools.product(range(values.seeds), values.budgets))
    if "pretrain" in values.do:
        for seed, budget in seeds_and_budgets:
            for name in values.objectives:
                runs.pretrain(budget, name, seed, values)
    if "finetune" in values.do:
        for seed, budget in seeds_and_budgets:
            sources = [runs.workdir(budget, n, seed, values) for n in values.objectives]
            sources = [runs.random_folder(seed, values), *sources]
            for mode, task, source in itertools.product(
                runs.MODES, values.tasks, sources
            ):
                runs.finetune(source, task, mode, seed, values)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def add(name, default, text, **options):
        options = {"type": type(default), **options}
        parser.add_argument(f"--{name}", default=default, help=text, **options)

    def names(text):
        return text.split(",")

    parser.add_argument("--corpus", required=True, help="from run.build_corpus")
    parser.add_argument("--data", required=True, help="folder with glue/ and squad/")
    parser.add_argument("--output", required=True, help="folder for all runs")
    add("do", "pretrain,finetune", "both, one, or neither")
    add("budgets", list(runs.BUDGETS), "one of the two, or both", type=names)
    add("objectives", list(runs.OBJECTIVES), "some of the nine", type=names)
    add("tasks", list(runs.TASKS), "some of the five", type=names)
    add("picture", "", "file for the picture")
    add("steps", 8000, "of pretraining")
    add("seeds", 2, "of each objective")
    add("examples", 1000, "to train on, of each task")
    add("rounds", 7, "of timing")
    add("timed_steps", 25, "in a round")
    parser.add_argument("--smoke", action="store_true", help="smallest shapes, to try")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    values = parse(arguments)
    output = pathlib.Path(values.output)
    output.mkdir(parents=True, exist_ok=True)
    if not jax.config.jax_compilation_cache_dir:
        # Runs that differ in their seed are one program.
        folder = str(output.absolute() / "compiled")
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    run_all(values)
    comparison_page.print_tables(values)
    if values.picture:
        comparison_page.draw(values).savefig(values.picture)


if __name__ == "__main__":
    main()
