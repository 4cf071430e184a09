"""OpenVINO GenAI behind OpenAI's API and the tensors of Triton's vLLM backend."""

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.serving.backends.language.chats import USER, check_a_stream_has_the_text_of_the_whole_response
from tests.serving.backends.llamacpp.models import TINY, write_tiny
from tests.serving.live import Live, serving
from tests.waiting import eventually

pytest.importorskip("openvino_genai")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    write_tiny(repository, "tiny", "openvino_genai", threads=1, n_parallel=4, n_ctx=1024)
    write_folder(repository / "folder" / "1")
    with serving(repository) as running:
        yield running


def write_folder(directory: Path) -> None:
    """The same model as OpenVINO IR with its tokenizer, without a configuration."""
    script = """
import sys
import tpx.serving.backends.openvino
from openvino_genai import ContinuousBatchingPipeline, SchedulerConfig, Tokenizer
Tokenizer(sys.argv[1], enable_save_ov_model=True)
ContinuousBatchingPipeline(sys.argv[1], SchedulerConfig(), "CPU", {"enable_save_ov_model": True})
"""
    directory.mkdir(parents=True)
    file = directory / "tiny.gguf"  # the folder gets what is made of it
    shutil.copy(TINY, file)
    subprocess.run([sys.executable, "-c", script, str(file)], check=True, timeout=60)
    file.unlink()


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{live.http_port}/v1", api_key="k", max_retries=0) as made:
        yield made


def test_a_stream_of_a_chat_has_the_text_of_the_whole_response(client: openai.OpenAI) -> None:
    check_a_stream_has_the_text_of_the_whole_response(client)


def test_a_folder_of_openvino_ir_makes_the_text_of_its_gguf_file(live: Live, client: openai.OpenAI) -> None:
    config = live.get("/v2/models/folder/config").json
    assert (config["backend"], config["default_model_filename"]) == ("openvino_genai", "openvino_model.xml")
    fields: Any = {"prompt": "And the", "max_tokens": 12, "temperature": 0}
    texts = [client.completions.create(model=name, **fields).choices[0].text for name in ("tiny", "folder")]
    assert texts[0] == texts[1] != ""
    chats = [
        client.chat.completions.create(model=name, messages=USER, max_tokens=5, temperature=0)
        for name in ("tiny", "folder")
    ]
    assert chats[0].choices[0].message.content == chats[1].choices[0].message.content


def test_completions_stop_at_a_text_and_may_begin_with_the_prompt(client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny", "prompt": "And the", "max_tokens": 12, "temperature": 0}
    text = client.completions.create(**fields).choices[0].text
    stop = text[6:9]
    shorter = client.completions.create(**fields, stop=stop, echo=True).choices[0]
    assert shorter.text == "And the" + text[: text.index(stop)]
    assert shorter.finish_reason == "stop"


def test_a_schema_is_obeyed(client: openai.OpenAI) -> None:
    schema = {"enum": ["lamb", "lion"]}  # an object may have spaces without end between its members
    form: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    answer = client.chat.completions.create(
        model="tiny", messages=USER, response_format=form, max_tokens=20, temperature=0
    )
    assert json.loads(answer.choices[0].message.content or "") in schema["enum"]
    assert answer.choices[0].finish_reason == "stop"


def test_many_at_once_are_independent(client: openai.OpenAI) -> None:
    def ask(prompt: str) -> str:
        answer = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8
        return str(answer.choices[0].text)

    prompts = ["And", "The Lord", "In the", "Thou shalt", "But", "Who"]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(ask, prompts))
    assert together == [ask(prompt) for prompt in prompts]


def test_tensors_of_the_vllm_backend_work_as_with_llama_cpp(live: Live) -> None:
    sampling = json.dumps({"max_tokens": 4, "temperature": 0, "min_tokens": 4})
    fields = {"text_input": "And the", "sampling_parameters": sampling, "return_num_output_tokens": True}
    answer = live.http("POST", "/v2/models/tiny/generate", json.dumps(fields).encode())
    found = json.loads(answer.body)
    assert found["text_output"].startswith("And the")
    assert found["num_output_tokens"] == 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"n": 2}, "n"), ({"messages": [{"role": "user", "content": "a " * 5000}]}, "messages")],
    ids=["n", "long"],
)
def test_what_it_cannot_do_answers_400(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": USER, **fields})
    assert caught.value.param == param


def test_a_client_that_leaves_frees_its_sequence(live: Live, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="tiny", prompt="And", max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()

    def ended() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{live.ports['Metrics Service']}/metrics") as page:
            return b'vllm:num_requests_running{model="tiny",version="1"} 0' in page.read()

    eventually(ended)
    [stats] = live.get("/v2/models/tiny/stats").json["model_stats"]
    assert sum(each["success"]["count"] for each in stats["response_stats"].values()) < 900
