"""Servers that are compared have as many threads."""

import os

from tools.bench import serving_speed


def test_peers_have_equal_budgets():
    cores = len(os.sched_getaffinity(0))
    peers = [each for each in serving_speed.peers() if each.onnx]
    assert {each.onnx[0] for each in peers} == {"float32", "int8"}
    for each in peers:
        _, at_once, threads = each.onnx
        assert int(at_once) * int(threads) == cores
