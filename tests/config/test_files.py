"""A configuration that is wrong says where: file, line, column, key, what is wrong, the nearest valid key."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from delegate.config import BackendChoice, Config, backend_options, load_config
from delegate.config.source import parse
from delegate.errors import BackendUnavailable, ConfigError
from delegate.registry import Registry
from tests.support.plugins import Site

# what the file holds -> the whole message, FILE standing for its path
MESSAGES = {
    "": "the file is empty (FILE): write at least `version: 1`",
    "# nothing\n": "the file is empty (FILE): write at least `version: 1`",
    "- adder\n": "a configuration is a mapping (key: value), not list (FILE:1:1): write at least `version: 1`",
    "version: 2": "version: should be 1, not 2 (FILE:1:10)",
    "version: '1'": "version: should be 1, not '1' (FILE:1:10)",
    "version: 1\nbackend: [adder]": "backend: unknown key (FILE:2:1): did you mean 'backends'?",
    "backends: adder": "backends: should be a list, not 'adder' (FILE:1:11)",
    "backends:\npolicy: {}": (
        "backends: has no value: write [] for no backend, or leave the key out for all that are available (FILE:1:10)"
    ),
    "backends:\n  - ader\n": "backends[0]: no backend is named 'ader' (FILE:2:5): did you mean 'adder'?",
    "backends:\n  - adder\n  - 3\n": (
        "backends[1]: should be the name of a backend, or a mapping that holds it (FILE:3:5)"
    ),
    "backends: [{options: {}}]": "backends[0].name: missing (FILE:1:12): add it",
    "backends: [adder, adder]": (
        "backends[1]: 'adder' appears twice (FILE:1:19): give one of them another name, e.g. adder:second"
    ),
    "backends:\n  - name: adder\n    options:\n      thread: 2\n": (
        "backends[0].options.thread: unknown key (FILE:4:7): did you mean 'threads'?"
    ),
    "backends: [{name: adder, options: {threads: 0}}]": (
        "backends[0].options.threads: should be greater than or equal to 1, not 0 (FILE:1:45)"
    ),
    "backends: [{name: adder, options: {threads: '2'}}]": (
        "backends[0].options.threads: should be a whole number, not '2' (FILE:1:45)"
    ),
    "partitioning:\n  min_partition_siz: 2": (
        "partitioning.min_partition_siz: unknown key (FILE:2:3): did you mean 'min_partition_size'?"
    ),
    "partitioning: {min_partition_size: true}": (
        "partitioning.min_partition_size: should be a whole number, not true (FILE:1:36)"
    ),
    "partitioning: {min_partition_size: -1}": (
        "partitioning.min_partition_size: should be greater than or equal to 0, not -1 (FILE:1:36)"
    ),
    "partitioning: {exclude: aten.add}": "partitioning.exclude: should be a list, not 'aten.add' (FILE:1:25)",
    "partitioning: {exclude: [1]}": "partitioning.exclude[0]: should be text, not 1 (FILE:1:26)",
    "partitioning:": "partitioning: should be a mapping (key: value), not empty (FILE:1:14)",
    "backends: [adder]\npartitioning:\n  pins:\n    a.*: ader": (
        "partitioning.pins.a.*: 'ader' is not among the backends of this configuration (FILE:4:10): "
        "did you mean 'adder'?"
    ),
    "backends: []\nplacement: {policy: measured}": (
        "placement: it needs a backend, but `backends` is empty (FILE:2:12): name one, or leave `backends` out for all"
    ),
    "backends: []\nquantization: {scheme: static_int8}": (
        "quantization: it needs a backend, but `backends` is empty (FILE:2:15): name one, or leave `backends` out for "
        "all"
    ),
    "backends: [adder]\nplacement: {policy: measured, candidates: [ader]}": (
        "placement.candidates[0]: 'ader' is not among the backends of this configuration (FILE:2:44): "
        "did you mean 'adder'?"
    ),
    "policy: {portable: ignore}": "policy.portable: should be 'allow', 'warn' or 'error', not 'ignore' (FILE:1:20)",
    "policy: {}\npolicy: {}": "policy: the key appears twice (FILE:2:1): the first is in line 1; remove one",
    "partitioning:\n  pins:\n    a: adder\n    a: portable": (
        "partitioning.pins.a: the key appears twice (FILE:4:5): the first is in line 3; remove one"
    ),
    "version: [1": ("not valid YAML: while parsing a flow sequence did not find expected ',' or ']' (FILE:2:1)"),
    "a: 1\n\tb: 2": (
        "not valid YAML: while scanning a plain scalar found a tab character that violates indentation (FILE:2:1)"
    ),
    "a: &a [1]\nb: *a": "not valid YAML: aliases (*name) are not supported (FILE:2:4)",
    "a: !!python/name:os.system ''": (
        "not valid YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:os.system' "
        "(FILE:1:4)"
    ),
    "backends: !!python/object/apply:os.system ['ls']": (
        "not valid YAML: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not supported (FILE:1:11)"
    ),
    "backends: !!set {adder}": "not valid YAML: the tag 'tag:yaml.org,2002:set' is not supported (FILE:1:11)",
    "backends: [adder, portable]": (
        "backends[1]: 'portable' is not a backend: its kernels run the nodes that no backend supports (FILE:1:19): "
        "remove it; [] means only portable kernels"
    ),
    "a: 1\n---\nb: 2": (
        "not valid YAML: expected a single document in the stream but found another document (FILE:2:1)"
    ),
    "a: 1\nb: \x00": "not valid YAML: control characters are not allowed (FILE:2)",
    "? [a]\n: 1": "the top level: a key must be text (FILE:1:3)",
    "[" * 1000: "not valid YAML: too deeply nested (FILE:1:65)",
}


@pytest.fixture
def registry(site: Site) -> Registry:
    site.backend("adder")
    site.backend("absent", ok=False, reason="absent-sdk is not installed")
    return Registry()


@pytest.mark.parametrize("text", MESSAGES, ids=range(len(MESSAGES)))
def test_message(tmp_path: Path, registry: Registry, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file, registry=registry)
    assert str(caught.value) == MESSAGES[text].replace("FILE", str(file))


def test_all_problems_are_reported_one_a_line(tmp_path: Path, registry: Registry) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("backends: [{name: adder, incude: []}]\npolicy: {unavailable: maybe}\npartitioning: 3\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, registry=registry)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["backends[0].incude", "partitioning", "policy.unavailable"]


def test_problems_of_every_kind_are_reported_together(tmp_path: Path) -> None:
    """Unknown keys, values, and schemes; names within a section whose keys are wrong come later."""
    file = tmp_path / "c.yaml"
    file.write_text(
        """\
backend: []
backends:
  - {name: XNNPACK, options: {thread: 4}}
  - {name: xnnpak}
quantization: {scheme: static_int9, operators: {"aten.add*": OFF, "aten.mul*": dynamic_int9}}
partitioning: {pins: {"a.*": dps}, include: [1]}
policy: {portabl: error}
placement: {policy: measure}
"""
    )
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    places = [line.split(": ")[0] for line in str(caught.value).splitlines()]
    assert sorted(places) == [
        "backend",
        "backends[0].options.thread",
        "backends[1]",
        "partitioning.include[0]",
        "placement.policy",
        "policy.portabl",
        "quantization.operators.aten.mul*",
        "quantization.scheme",
    ]


def test_names_match_without_case() -> None:
    written = {
        "backends": ["XNNPACK", "Xnnpack:Small"],
        "quantization": {"backend": "XNNpack", "scheme": "Static_INT8", "modules": {"a.*": "OFF"}},
        "partitioning": {"pins": {"a.*": "Portable"}, "node_pins": {"b": "XNNPACK:Small"}},
        "placement": {"candidates": ["XNNPACK"]},
    }
    config = load_config(written)
    assert [choice.name for choice in config.backends] == ["xnnpack", "xnnpack:Small"]
    assert config.quantization.backend == "xnnpack"
    assert config.partitioning.pins == {"a.*": "portable"}
    assert config.partitioning.node_pins == {"b": "xnnpack:Small"}
    assert [candidate.name for candidate in config.placement.candidates] == ["xnnpack"]


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (lambda path: None, "there is no configuration file"),
        (lambda path: path.mkdir(), "cannot read the configuration: Is a directory"),
        (lambda path: path.write_bytes(b"version: \xff"), "the configuration is not UTF-8 text: byte 9"),
    ],
    ids=["missing", "directory", "binary"],
)
def test_unreadable(tmp_path: Path, prepare: object, sentence: str) -> None:
    path = tmp_path / "c.yaml"
    prepare(path)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=sentence):
        load_config(path)


def test_full(tmp_path: Path, registry: Registry) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "version: 1\n"
        "backends:\n"
        "  - adder\n"
        "  - {name: absent, options: {threads: 4}, include: [aten.add.*], exclude: [aten.mul]}\n"
        "partitioning: {min_partition_size: 2, include: ['aten.*'], exclude: [aten.div], "
        "pins: {encoder: absent, head: portable}, node_pins: {add_1: adder}}\n"
        "policy: {unavailable: warn, portable: error}\n"
    )
    config = load_config(str(file), registry=registry)
    assert config.backends is not None
    assert [c.name for c in config.backends] == ["adder", "absent"]
    options = backend_options(config.backends[1], registry)
    assert options.model_dump() == {"threads": 4, "precision": "float32"}
    assert (config.policy.unavailable, config.policy.portable) == ("warn", "error")
    rules = config.rules(["adder", "absent"])
    assert (rules.min_partition_size, rules.include, rules.exclude) == (2, ("aten.*",), ("aten.div",))
    assert rules.backend_include == {"absent": ("aten.add.*",)}
    assert rules.backend_exclude == {"absent": ("aten.mul",)}
    assert rules.pins == {"encoder": "absent", "head": "portable"}
    assert rules.node_pins == {"add_1": "adder"}
    assert config.rules(["adder"]).pins == {"head": "portable"}
    assert load_config(config, registry=registry) is config


def test_defaults_are_those_of_the_partitioner(registry: Registry) -> None:
    from delegate.partitioner.rules import PartitionRules

    config = load_config({}, registry=registry)
    assert config == Config()
    assert config.backends is None
    assert config.rules([]) == PartitionRules()


def test_options_that_are_no_plain_values(registry: Registry) -> None:
    circular: dict[str, object] = {}
    circular["self"] = circular
    choice = BackendChoice.model_construct(name="adder", options=circular)
    with pytest.raises(ConfigError, match="the options of backend 'adder' must be plain values"):
        backend_options(choice, registry)


def test_byte_order_mark(tmp_path: Path, registry: Registry) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(b"\xef\xbb\xbfversion: 1\nbackends: [adder]\n")
    assert load_config(file, registry=registry).backends is not None


def test_mapping_has_no_place(registry: Registry) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"backends": [{"name": "adder", "options": {"thread": 1}}]}, registry=registry)
    assert str(caught.value) == "backends[0].options.thread: unknown key: did you mean 'threads'?"


def test_config_object_is_checked_too(registry: Registry) -> None:
    config = Config.model_validate({"backends": ["nobody"]})
    with pytest.raises(ConfigError, match="no backend is named 'nobody'"):
        load_config(config, registry=registry)


def test_broken_backend_is_named_with_its_place(tmp_path: Path, site: Site) -> None:
    site.module("bad_plugin", "1 / 0")
    site.distribution("bad-dist", "1.0", {"bad": "bad_plugin:INFO"})
    file = tmp_path / "c.yaml"
    file.write_text("backends:\n  - name: bad\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, registry=Registry())
    message = str(caught.value)
    assert message.startswith("backends[0]: backend 'bad' of bad-dist 1.0 is broken: it fails to import")
    assert f"({file}:2:11)" in message


def test_options_of_a_blocked_backend_wait_for_the_policy(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.backend("adder")
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", "adder")
    registry = Registry()
    config = load_config({"backends": [{"name": "adder", "options": {"any": 1}}]}, registry=registry)
    assert config.backends is not None
    with pytest.raises(BackendUnavailable, match="blocked"):
        backend_options(config.backends[0], registry)


@pytest.mark.parametrize("policy", ["warn", "skip"])
def test_a_backend_that_is_not_installed_waits_for_the_policy(registry: Registry, policy: str) -> None:
    config = load_config({"backends": ["nobody", "adder"], "policy": {"unavailable": policy}}, registry=registry)
    assert config.backends is not None
    assert [c.name for c in config.backends] == ["nobody", "adder"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (3, "a int is not a configuration: give the path of a YAML file"),
        (["adder"], "a list is not a configuration"),
        (b"c.yaml", "a bytes is not a configuration"),
        ("a\0b", "cannot read the configuration 'a\\x00b'"),
    ],
)
def test_what_is_no_configuration(registry: Registry, source: object, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(source, registry=registry)  # type: ignore[arg-type]
    assert words in str(caught.value)


LARGE = {
    "numbers": "a: [" + "1," * 500_000 + "1]",
    "different numbers": "a: [" + ",".join(map(str, range(150_000))) + "]",
    "lines": "- a\n" * 250_000,
    "keys": "".join(f"k{i}: {{}}\n" for i in range(80_000)),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_megabyte_is_read_in_seconds(name: str) -> None:
    start = time.process_time()
    assert parse(LARGE[name]) is not None
    assert time.process_time() - start < 8  # it takes one; parsing in Python took twenty and more
