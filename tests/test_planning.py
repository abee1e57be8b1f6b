"""ggml plans the memory of a graph when it is new or has grown. The decoder's is planned once, with the state: neither
switching a view on nor its steps, re-executed ones among them, make it plan again."""

import os
import subprocess

import native_tools as tools
import pytest

COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

bool ggml_gallocr_reserve_n(void * allocr, void * graph, const int * nodes, const int * leafs) {
    bool (*planned)(void *, void *, const int *, const int *) = dlsym(RTLD_NEXT, "ggml_gallocr_reserve_n");
    fprintf(stderr, "planned\\n");
    return planned(allocr, graph, nodes, leafs);
}
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    source = tmp_path_factory.mktemp("counter") / "counter.c"
    source.write_text(COUNTER, encoding="ascii")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", source.with_suffix(".so"), "-ldl"], check=True)
    return source.with_suffix(".so")


def test_no_step_plans_memory(counter, tiny_en):
    view = ["--kv-budget", "192", "--kv-tau", "0.6", "--kv-stats"]
    result = subprocess.run(
        [tools.OURS / "bin" / "whisper-cli", "-m", tiny_en, "-f", tools.JFK, "-nt", *view],
        env={**os.environ, "LD_PRELOAD": str(counter)},
        capture_output=True,
        text=True,
        check=True,
    )
    begin, _, rest = result.stderr.partition("compute buffer (decode)")
    assert begin.count("planned") == 4  # conv, encode, cross, decode
    assert rest.count("planned") == 0
    assert "reduced" in rest and "0 re-executed" not in rest
