"""``bertfam search``."""

import argparse

from bertfam_tf.cli.common import (
    LANGUAGES,
    Commands,
    add_command,
    chosen_language,
    print_json,
    prompt_name,
    stdin_lines,
)

_USUAL_PROMPTS = ("query",)


def add(commands: Commands) -> None:
    parser = add_command(
        commands, "search", run, "print the nearest documents, one line of JSON per query"
    )
    parser.add_argument("model", help="the embedder that made the index")
    parser.add_argument("index", help="the directory of bertfam index")
    parser.add_argument("query", nargs="*", help="texts (default: lines of standard input)")
    parser.add_argument("--language", help=f"of the queries, {LANGUAGES}")
    parser.add_argument("--top", type=int, default=10, metavar="K", help="(%(default)s)")
    parser.add_argument("--prompt", help="its name; '' for none (default: query, if there is one)")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf import search
    from bertfam_tf.recipes.directory import model_directory

    index = search.Index(options.index)
    task = search.embedder(model_directory(options.model), chosen_language(options))
    index.check(task)
    queries = options.query or stdin_lines()
    prompt = prompt_name(task, options.prompt, _USUAL_PROMPTS)
    hits_by_query = index.search(task, queries, top=options.top, prompt=prompt)
    for query, hits in zip(queries, hits_by_query, strict=True):
        results = [{**hit._asdict(), "score": round(hit.score, 6)} for hit in hits]
        print_json({"query": query, "results": results})
