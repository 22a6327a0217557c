"""Predict over REST: JSON requests, JSON answers, and the place and reason of every refusal."""

import base64
import json
import threading

import httpx
import pytest

PREDICT = "/v1/models/zoo:predict"


@pytest.mark.parametrize(
    ("signature", "body", "answer"),
    [
        ("", '{"instances": [2, 3, 4]}', {"predictions": [3.0, 3.5, 4.0]}),
        ("", '{"inputs": [3.0, 4.0]}', {"outputs": [3.5, 4.0]}),
        ("", '{"inputs": {"x": [3, 4], "unknown": 1}}', {"outputs": [3.5, 4.0]}),
        ("", '{"instances": [{"x": 2}, {"x": 3}]}', {"predictions": [3.0, 3.5]}),
        # Shapes are not checked against the signature's [None].
        ("", '{"instances": [[1, 2], [3, 4]]}', {"predictions": [[2.5, 3.0], [3.5, 4.0]]}),
        ("", '{"inputs": 2}', {"outputs": 3.0}),
        ("", '{"inputs": []}', {"outputs": []}),
        ("", '{"instances": [[], []]}', {"predictions": [[], []]}),
        ("", '{"instances": [2], "more": {"x": null}}', {"predictions": [3.0]}),
        ("", '  {"instances": [2]} trailing [text', {"predictions": [3.0]}),
        ("", '\ufeff{"instances": [2]}', {"predictions": [3.0]}),
        ("", '{"signature_name": "", "instances": [2]}', {"predictions": [3.0]}),
        ("pair", '{"instances": [{"a": 1, "b": 2}, {"b": 4, "a": 3}]}',
         {"predictions": [3.0, 7.0]}),
        ("pair", '{"inputs": {"a": [[1], [2]], "b": 5}}', {"outputs": [[6.0], [7.0]]}),
        ("scalar", '{"inputs": [1, 2]}', {"outputs": 3.0}),
        (
            "several",
            '{"instances": [1, -2]}',
            {
                "predictions": [
                    {"pairs": [1.0, -1.0], "positive": True, "twice": 2.0},
                    {"pairs": [-2.0, 2.0], "positive": False, "twice": -4.0},
                ]
            },
        ),
        (
            "several",
            '{"inputs": [1, -2]}',
            {
                "outputs": {
                    "pairs": [[1.0, -1.0], [-2.0, 2.0]],
                    "positive": [True, False],
                    "twice": [2.0, -4.0],
                }
            },
        ),
        ("uneven", '{"inputs": [1]}', {"outputs": {"a": [1.0], "b": [1.0, 1.0]}}),
        ("echo_int8", '{"instances": [300, -1]}', {"predictions": [44, -1]}),
        ("echo_int16", '{"instances": [1]}', {"predictions": [1]}),
        ("echo_uint8", '{"instances": [255]}', {"predictions": [255]}),
        ("echo_int64", '{"instances": [-9223372036854775808]}', {"predictions": [-(2**63)]}),
        ("echo_uint32", '{"instances": [4294967295]}', {"predictions": [2**32 - 1]}),
        ("echo_uint64", '{"instances": [18446744073709551615]}', {"predictions": [2**64 - 1]}),
        ("echo_float64", '{"instances": [1, 1.5]}', {"predictions": [1.0, 1.5]}),
        ("echo_bool", '{"instances": [true, false]}', {"predictions": [True, False]}),
        ("echo_string", r'{"instances": ["a\"\\\n/é\u00e9\ud83d\ude00"]}',
         {"predictions": ['a"\\\n/éé😀']}),
        ("echo_string", '{"instances": [{"b64": "aGVsbG8="}, "x"]}',
         {"predictions": ["hello", "x"]}),
        ("echo_string", '{"instances": [{"b64": "aGVsbG8"}]}', {"predictions": ["hello"]}),
        ("echo_string", '{"inputs": {"b64": "aGVsbG8="}}', {"outputs": "hello"}),
        ("echo_string", '{"instances": [["a", "b"], ["c", {"b64": "ZA=="}]]}',
         {"predictions": [["a", "b"], ["c", "d"]]}),
        (
            "tokens",
            '{"instances": ["one two", ""]}',
            {
                "predictions": [
                    {"count": 2, "raw_bytes": {"b64": "b25lIHR3bw=="}, "text": "one two"},
                    {"count": 0, "raw_bytes": {"b64": ""}, "text": ""},
                ]
            },
        ),
    ],
)  # fmt: skip
def test_answers(predict, signature, body, answer):
    response = predict(body, signature)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.json() == answer


# Every response text is compared character by character: this is how clients diff two servers.
@pytest.mark.parametrize(
    ("signature", "body", "text"),
    [
        ("", '{"instances": [2, 3]}', '{\n    "predictions": [3.0, 3.5\n    ]\n}'),
        ("", '{"instances": [[2], [3]]}', '{\n    "predictions": [[3.0], [3.5]\n    ]\n}'),
        ("", '{"inputs": [2, 3]}', '{\n    "outputs": [\n        3.0,\n        3.5\n    ]\n}'),
        (
            "",
            '{"inputs": [[2], []]}'.replace("[]", "[3]"),
            '{\n    "outputs": [\n        [\n            3.0\n        ],\n'
            "        [\n            3.5\n        ]\n    ]\n}",
        ),
        ("scalar", '{"inputs": [2, 3]}', '{\n    "outputs": 5.0\n}'),
        (
            "tokens",
            '{"instances": ["a b"]}',
            '{\n    "predictions": [\n        {\n            "count": 2,\n'
            '            "raw_bytes": {\n                "b64": "YSBi"\n            },\n'
            '            "text": "a b"\n        }\n    ]\n}',
        ),
        (
            "uneven",
            '{"inputs": [1]}',
            '{\n    "outputs": {\n        "a": [\n            1.0\n        ],\n'
            '        "b": [\n            1.0,\n            1.0\n        ]\n    }\n}',
        ),
    ],
)
def test_layout(predict, signature, body, text):
    assert predict(body, signature).text == text


@pytest.mark.parametrize(
    ("dtype", "sent", "received"),
    [
        ("float32", "9000000", "9e+06"),
        ("float32", "999999", "999999.0"),
        ("float32", "0.50000", "0.5"),
        ("float32", ".0003".replace(".", "0."), "0.0003"),
        ("float32", "0.00003", "3e-05"),
        ("float32", "555557.5", "555557.5"),
        ("float32", "0.2", "0.2"),
        ("float32", "0.1234567", "0.123456702"),
        ("float32", "1435774380", "1.43577434e+09"),
        ("float32", "16777216", "16777216.0"),
        ("float32", "99999900", "9.99999e+07"),
        ("float32", "-0.0", "-0.0"),
        ("float32", "1e-45", "1.4013e-45"),
        ("float32", "NaN", "NaN"),
        ("float32", "Inf", "Infinity"),
        ("float32", "Infinity", "Infinity"),
        ("float32", "-Inf", "-Infinity"),
        ("float32", "-NaN", "NaN"),
        ("float32", "1.7976931348623157e308", "Infinity"),
        ("float32", "2.2250738585072014e-308", "0.0"),
        ("float64", "0.1", "0.1"),
        ("float64", "0.1234567", "0.1234567"),
        ("float64", "123456789", "123456789.0"),
        ("float64", "1e300", "1e+300"),
    ],
)
def test_number_formats(predict, dtype, sent, received):
    response = predict(f'{{"inputs": [{sent}]}}', f"echo_{dtype}")
    assert response.text == f'{{\n    "outputs": [\n        {received}\n    ]\n}}'


def test_short_names_of_infinity_inside_strings_are_text(predict):
    response = predict('{"x": ["Inf\\"", "-NaN"], "inputs": [Inf, -Inf, 1]}')
    assert response.json() == {"outputs": [float("inf"), float("-inf"), 2.5]}
    response = predict('{"n": Inf, "inputs": "Inf"}', "echo_string")
    assert response.json() == {"outputs": "Inf"}


@pytest.mark.parametrize(
    ("signature", "body", "error"),
    [
        ("", "", "not JSON: Expecting value (byte 0)"),
        ("", " \n", "not JSON: Expecting value (byte 2)"),
        ("", "instances = [1, 2]", "not JSON: Expecting value (byte 0)"),
        ("", '{"é": [1 2]}', "Expecting ',' delimiter (byte 10)"),
        ("", '{"é": [1,]}', "(byte "),
        ("", '{"[": 1 "b"}', "Expecting ',' delimiter (byte 8)"),
        ("", "{1: 2}", "Expecting property name enclosed in double quotes (byte 1)"),
        ("", '{"a" 2}', "Expecting ':' delimiter (byte 5)"),
        ("", '{"a": "b', "Unterminated string starting at (byte 6)"),
        ("", '{"a": 1e999}', "a number that is too large"),
        ("", '{"a": ' + "9" * 5000 + "}", "a number that is too large"),
        ("", '{"inputs": [Inf]]}', "Expecting ',' delimiter"),
        ("", '{"inputs": ' + "9" * 400 + "}", "inputs has a number that is too large"),
        ("", "[1, 2]", "must be a JSON object, got an array of 2"),
        ("", "3", "must be a JSON object, got 3"),
        ("", "{}", "either 'instances' or 'inputs'"),
        ("", '{"instances": 1}', "'instances' must be a non-empty array, got 1"),
        ("", '{"instances": []}', "'instances' must be a non-empty array, got an empty array"),
        ("", '{"instances": [1], "inputs": [1]}', "either 'instances' or 'inputs'"),
        ("", '{"signature_name": 100}', "'signature_name' must be a string, got 100"),
        ("", '{"signature_name": "x", "instances": [1]}',
         'Serving signature name: "x" not found in signature def'),
        ("", '{"signature_name": "__saved_model_init_op", "instances": [1]}',
         "'__saved_model_init_op' has no inputs"),
        ("", '{"instances": ["x"]}', 'instances[0] is "x", expected a number (float32)'),
        ("", '{"instances": [1, null]}', "instances[1] is null, expected a number"),
        ("", '{"instances": [1, true]}', "instances[1] is true, expected a number"),
        ("", '{"instances": [1, {"b64": "aGVsbG8="}]}',
         "instances[1] is an object, expected a number"),
        ("", '{"instances": [[1, 2], [1]]}',
         "instances[1] is an array of 1, expected an array of 2"),
        ("", '{"instances": [[1], 1]}', "instances[1] is 1, expected an array of 1"),
        ("", '{"instances": [[[1, 2]], [[1], [2]]]}',
         "instances[1] is an array of 2, expected an array of 1"),
        ("", '{"instances": [[[1, 2], [1]]]}',
         "instances[0][1] is an array of 1, expected an array of 2"),
        ("", '{"instances": [[1, [2]]]}', "instances[0][1] is an array of 1, expected a number"),
        ("", '{"instances": [[[1], 2]]}', "instances[0][1] is 2, expected an array of 1"),
        ("", '{"instances": [{"x": 1}, 2]}', "instances[1] is 2, expected an object"),
        ("", '{"instances": [1, {"x": 2}]}', "instances[1] is an object, expected a value"),
        ("", '{"instances": [{"z": 1}]}', 'instances[0] has the names "z", expected "x"'),
        ("", '{"instances": [{"x": 1, "z": 1}]}',
         'instances[0] has the names "x", "z", expected "x"'),
        ("", '{"inputs": {"z": 1}}', '"x"'),
        ("", '{"inputs": [[1], [2, 3]]}', "inputs[1] is an array of 2, expected an array of 1"),
        ("pair", '{"instances": [{"a": 1}]}',
         'instances[0] has the names "a", expected "a", "b"'),
        ("pair", '{"instances": [{"a": 1, "b": 2}, {"a": 3, "b": [4]}]}',
         'instances[1]["b"] is an array of 1, expected an integer'),
        ("pair", '{"instances": [1]}', 'must be an object with the names "a", "b"'),
        ("pair", '{"inputs": [1]}', 'must be an object with the names "a", "b"'),
        ("pair", '{"inputs": {"a": 1}}', '"b"'),
        ("pair", '{"inputs": {"a": 1, "b": [2, 0.5]}}',
         'inputs["b"][1] is 0.5, expected an integer'),
        ("echo_int32", '{"inputs": [1.0]}', "inputs[0] is 1.0, expected an integer"),
        ("echo_int32", '{"inputs": [2147483648]}', "inputs[0] is 2147483648, expected an integer"),
        ("echo_int64", '{"inputs": 9223372036854775808}',
         "inputs is 9223372036854775808, expected an integer"),
        ("echo_uint8", '{"inputs": 1e30}', "inputs is 1e+30, expected an integer"),
        ("echo_uint32", '{"inputs": -1}', "inputs is -1, expected an integer from 0 to"),
        ("echo_uint64", '{"inputs": -1}', "inputs is -1, expected an integer from 0 to"),
        ("echo_bool", '{"inputs": 1}', "inputs is 1, expected true or false (bool)"),
        ("echo_string", '{"inputs": 1}', "inputs is 1, expected a string"),
        ("echo_string", '{"inputs": [{"b64": 1}]}', 'inputs[0]: An object in place of a string'),
        ("echo_string", '{"inputs": ["a", {"b64": "?"}]}', 'inputs[1]: The value of "b64"'),
        ("echo_string", r'{"inputs": "\ud800"}', "half of a surrogate pair"),
        ("scalar", '{"instances": [1]}', "The output 'total' is a scalar"),
        ("uneven", '{"instances": [1]}', "The output 'b' has 2 rows, expected 1"),
        ("echo_float16", '{"instances": [1]}', "instances[0]: JSON cannot carry"),
    ],
)  # fmt: skip
def test_refusals(predict, signature, body, error):
    response = predict(body, signature)
    assert error in response.json()["error"]
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "uint16"])
def test_dtypes_json_cannot_carry(predict, dtype):
    response = predict('{"inputs": [1]}', f"echo_{dtype}")
    assert response.status_code == 501
    assert f"inputs[0]: JSON cannot carry tensors of type {dtype}" in response.json()["error"]
    # Without values there is nothing to carry, until the answer.
    response = predict('{"inputs": []}', f"echo_{dtype}")
    assert (response.status_code, response.json()) == (200, {"outputs": []})


def test_error_layout(predict):
    assert predict("[").text.startswith('{\n    "error": "The body is not JSON: ')


def test_errors_quote_little_of_a_request(predict):
    error = predict(json.dumps({"instances": ["x" * 1000]})).json()["error"]
    assert "xxx…, expected a number" in error
    assert len(error) < 200
    error = predict(json.dumps({"instances": [{"y" * 1000 + str(i): 0 for i in range(99)}]}))
    assert len(error.json()["error"]) < 3000


def test_a_graph_that_fails_is_answered_with_its_own_text(predict):
    response = predict('{"inputs": {"a": [1, 2], "b": [1, 2, 3]}}', "pair")
    assert response.status_code == 400
    assert "Incompatible shapes" in response.json()["error"]


def test_compiled_functions_fail_as_in_serving(predict):
    response = predict('{"instances": [1]}', "jitted")
    assert response.status_code == 500
    assert "XLA compilation disabled" in response.json()["error"]


def test_bytes_that_are_not_utf8_pass_through_strings(client):
    body = b'{"signature_name": "echo_string", "instances": ["a\xff\xc3\xa9"]}'
    response = client.post(PREDICT, content=body)
    assert response.status_code == 200
    assert b'"a\xff\xc3\xa9"' in response.content


def test_bytes_that_are_not_utf8_elsewhere(client):
    response = client.post(PREDICT, content=b"\xff{}")
    assert response.status_code == 400
    assert "(byte 0)" in response.json()["error"]


@pytest.mark.parametrize("body", ['{"instances": %s1%s}', '{"signature_name": %s%s}'])
@pytest.mark.parametrize("depth", [100, 500, 900, 500_000])
def test_deep_nesting_is_refused(predict, body, depth):
    response = predict(body % ("[" * depth, "]" * depth))
    assert response.status_code == 400
    assert response.json()["error"]


def test_a_text_of_almost_the_limit(predict):
    text = "word " * 100_000
    response = predict(json.dumps({"instances": [text]}), "tokens")
    (row,) = response.json()["predictions"]
    assert row["count"] == 100_000
    assert row["text"] == text
    assert base64.b64decode(row["raw_bytes"]["b64"]) == text.encode()


def test_requests_at_once_get_their_own_answers(server):
    wrong = []

    def ask(number):
        with httpx.Client(base_url=server.url, timeout=60) as client:
            for step in range(20):
                x = number * 100.0 + step
                answer = client.post(PREDICT, json={"instances": [x, -x]}).json()
                if answer != {"predictions": [x / 2 + 2, 2 - x / 2]}:
                    wrong.append((x, answer))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
