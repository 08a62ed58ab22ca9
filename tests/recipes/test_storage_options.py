"""Options of stores behind URLs: they reach the store, decide what is cached, and are seen nowhere."""

from __future__ import annotations

import json
import pickle

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from botocore.exceptions import EndpointConnectionError
from moto.server import ThreadedMotoServer

from poolish import DatasetRecipe, StreamStore
from poolish.errors import ConfigError, PoolishError, RecipeError
from poolish.files import StorageOptions
from poolish.recipes import AddIngredient
from poolish.recipes.sources import FileSource
from tests.recipes.kitchen import cached, message_of, numbers, origins, xs

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
HERE = {"endpoint_url": "http://here:9000", "secret": SECRET}
THERE = {"endpoint_url": "http://there:9000", "secret": SECRET}


def put(memory, name, n=5, first=0):
    """A parquet file in memory."""
    with memory.open(name, "wb") as file:
        pq.write_table(numbers(n, first), file)


def recipe_of(options, path="memory://d/*.parquet"):
    """One ingredient behind a URL."""
    return DatasetRecipe("r", seed=7).add_ingredient("a", path, storage_options=options)


# Identity -------------------------------------------------------------------------------------------------------------


def test_two_stores_share_nothing_in_a_cache(memory, tmp_path):
    """The same path and the same bytes, elsewhere; other credentials of one store are the same store."""
    put(memory, "/d/0.parquet")
    memory.pipe("/d/1.jsonl", b'{"x": 1}\n')
    for path, n in (("memory://d/*.parquet", 1), ("memory://d/*.jsonl", 1)):
        cache = tmp_path / path[-5:]
        assert cached(recipe_of(HERE, path).bake(cache=cache)) == (0, n)
        assert cached(recipe_of(HERE | {"secret": "another"}, path).bake(cache=cache)) == (n, n)
        assert cached(recipe_of(THERE, path).bake(cache=cache)) == (0, n)
        assert cached(recipe_of(None, path).bake(cache=cache)) == (0, n)


def test_one_bake_of_two_stores_reads_both(memory):
    """Ingredients of the same path are read once only where they come from the same store."""
    put(memory, "/d/0.parquet")
    recipe = DatasetRecipe("r")
    for name, options in (("here", HERE), ("again", HERE), ("there", THERE)):
        recipe.add_ingredient(name, "memory://d/0.parquet", storage_options=options)
    reads = []

    class Noted(FileSource):
        def read(self, fragment, *rest):
            reads.append(fragment.place["store"])
            return super().read(fragment, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("poolish.recipes.sources.source.FileSource", Noted)
        patch.setattr("poolish.recipes.baking.FileSource", Noted)
        result = recipe.bake()

    assert xs(result) == [*range(5)] * 3
    assert len(reads) == len(set(reads)) == 2


def test_the_store_is_part_of_a_recipe_and_credentials_are_not(memory):
    """Fingerprints follow the store; rows keep their names and choice wherever the files lie."""
    put(memory, "/d/0.parquet", 50)
    prints = [recipe_of(options).fingerprint for options in (HERE, HERE | {"secret": "x"}, THERE, None)]

    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    assert origins(recipe_of(HERE).bake()) == origins(recipe_of(None).bake())
    assert "source" in recipe_of(HERE).diff(recipe_of(THERE)).changed["ingredient a"]


# Secrets --------------------------------------------------------------------------------------------------------------


def everything_shown(recipe, cache):
    """All that a bake tells or keeps."""
    result = recipe.bake(cache=cache)
    yield from (repr(recipe), repr(recipe.instructions), str(recipe.explain(cache)), repr(result), str(result.report))
    yield from (
        json.dumps(result.report.to_dict()) if hasattr(result.report, "to_dict") else "",
        result.report.to_html(),
    )
    yield from (str(result.lineage.why(0)), str(result.lineage.to_arrow()), str(recipe.diff(recipe_of(None))))
    yield from (file.read_bytes().decode(errors="replace") for file in cache.rglob("*") if file.is_file())


def test_secrets_are_in_nothing_that_is_shown_or_kept(memory, tmp_path):
    """reprs, explanations, reports, lineage, differences and cache files."""
    put(memory, "/d/0.parquet")
    options = {
        "secret": SECRET,
        "client_kwargs": {"headers": {"X": SECRET}},
        "connection_string": f"Key={SECRET};",
    }
    shown = list(everything_shown(recipe_of(options), tmp_path / "cache"))

    assert all(SECRET not in text for text in shown)
    assert "connection_string" in shown[1]


class Leaky(Exception):
    """An error as of a store that prints what it was given."""


@pytest.mark.parametrize("when", ["glob", "open", "info"])
def test_errors_of_a_store_keep_their_type_and_lose_the_secret(memory, monkeypatch, when):
    """In the message, the notes, the errors before it, quoted in a URL, and in an error of the system."""
    put(memory, "/d/0.parquet")

    def fail(*args, **kwargs):
        try:
            raise OSError(5, f"denied for {SECRET}", f"s3://{SECRET}@bucket")
        except OSError as error:
            raise Leaky(
                f"sign: {SECRET}, http://h/?k=wJalrXUtnFEMI%2FK7MDENG%2BbPxRfiCYEXAMPLEKEY", {SECRET}
            ) from error

    recipe = recipe_of({"secret": SECRET})
    monkeypatch.setattr(type(memory), when, fail)
    with pytest.raises(Leaky) as caught:
        recipe.bake()

    error = caught.value
    texts = [str(error), repr(error.args), message_of(error), str(error.__cause__), str(error.__cause__.filename)]
    assert not any(SECRET in text or "wJal" in text for text in texts)
    assert "***" in str(error)


def test_a_wrong_kind_of_options_is_refused_without_its_value():
    """In a program and in a recipe file."""
    with pytest.raises(ConfigError, match=r"storage_options is a dict.*got str") as caught:
        recipe_of(SECRET)
    document = {
        "name": "r",
        "instructions": [{"ingredient": "a", "source": "s3://b/*.parquet", "storage_options": [SECRET]}],
    }
    with pytest.raises(RecipeError, match="a table of options of the file system, got a list") as in_file:
        DatasetRecipe.from_dict(document)

    assert SECRET not in str(caught.value) + str(in_file.value)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("data/*.parquet", "on this machine"),
        (["s3://b/a.parquet", "gs://b/a.parquet"], "one store.*gs, s3"),
        (pa.table({"x": [1]}), "Table has none"),
    ],
)
def test_options_that_would_be_ignored_or_reach_another_store_are_refused(source, why):
    """When the ingredient is added."""
    with pytest.raises(RecipeError, match=f"ingredient 'a': storage_options are for .*{why}"):
        recipe_of(HERE, source)


def test_options_survive_copies_of_an_instruction(memory):
    """Instructions as values, and sources sent to other processes."""
    put(memory, "/d/0.parquet")
    recipe = DatasetRecipe([AddIngredient("a", "memory://d", storage_options=HERE)])
    options = recipe.instructions[0].storage_options

    assert isinstance(options, StorageOptions)
    assert dict(options) == HERE
    assert pickle.loads(pickle.dumps(options)) == options
    assert recipe.copy().fingerprint == recipe.fingerprint


# Recipe files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".yaml", ".toml", ".json"])
def test_recipe_files_have_options(memory, tmp_path, ending):
    """What is no secret is written; the rest may be added by hand, and is used."""
    put(memory, "/d/0.parquet")
    recipe = recipe_of({"endpoint_url": "http://here:9000", "client_kwargs": {"region_name": "eu"}, "anon": True})
    recipe.save(tmp_path / f"r{ending}")
    again = DatasetRecipe.load(tmp_path / f"r{ending}")

    assert dict(again.instructions[0].storage_options) == dict(recipe.instructions[0].storage_options)
    assert again.fingerprint == recipe.fingerprint
    assert xs(again.bake()) == [*range(5)]


def test_secrets_are_not_written_into_recipe_files(tmp_path):
    """The error names the options and where to keep them."""
    with pytest.raises(RecipeError, match=r"may be secret \(secret\); keep them in the environment") as caught:
        recipe_of(HERE).save(tmp_path / "r.yaml")

    assert SECRET not in str(caught.value)
    assert not (tmp_path / "r.yaml").exists()


# S3 -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3():
    """A server that speaks S3 on this machine: options for it, and the same server at another address."""
    servers = [ThreadedMotoServer("127.0.0.1", 0, verbose=False) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for server in servers:
            server.start()
        addresses = ["http://{}:{}".format(*server.get_host_and_port()) for server in servers]
        yield [{"key": "AKIA123", "secret": SECRET, "endpoint_url": address} for address in addresses]
        for server in servers:
            server.stop()


def test_s3_is_read_and_seen_to_change_and_stores_are_kept_apart(s3, tmp_path):
    """A directory of files behind a real protocol, with a cache."""
    here, there = s3
    store = s3fs.S3FileSystem(**here)
    store.mkdir("bucket")
    for i in range(2):
        with store.open(f"bucket/d/{i}.parquet", "wb") as file:
            pq.write_table(numbers(5, 5 * i), file)
    store.pipe("bucket/d/2.jsonl", b'{"x": 10}\n')

    def bake(options):
        return recipe_of(options, "s3://bucket/d/*.parquet").bake(cache=tmp_path / "cache")

    assert xs(bake(here)) == [*range(10)]
    assert cached(bake(here)) == (2, 2)
    assert cached(bake(there)) == (0, 2)
    assert xs(recipe_of(here, ["s3://bucket/d/2.jsonl"]).bake()) == [10]
    with store.open("bucket/d/0.parquet", "wb") as file:
        pq.write_table(numbers(5, 90), file)
    again = bake(here)
    assert cached(again) == (1, 2)
    assert xs(again) == [*range(90, 95), *range(5, 10)]


def test_what_s3_refuses_is_named_without_the_secret(s3):
    """A bucket that is not there, and a server that is not there."""
    for options, url in (
        (s3[0], "s3://nothing/*.parquet"),
        (s3[0] | {"endpoint_url": "http://127.0.0.1:9"}, "s3://b/d"),
    ):
        quick = {**options, "config_kwargs": {"connect_timeout": 1, "retries": {"max_attempts": 0}}}
        with pytest.raises((PoolishError, EndpointConnectionError)) as caught:
            recipe_of(quick, url).bake()
        assert SECRET not in message_of(caught.value)


def test_a_stream_goes_to_an_object_store_and_back(s3, tmp_path):
    """``save_dataset`` with a URL in place of a name."""
    s3fs.S3FileSystem(**s3[0]).mkdir("streams")
    with StreamStore(tmp_path / "one", fields=["action", "reward"]) as store:
        store.append(steps=[0, 0, 1], names=["action", "reward", "action"], values=[3, 0.5, 4])
        store.save_dataset("s3://streams/run", storage_options=s3[0])
        expected = [dict(step) for step in store.steps()]
    with StreamStore(tmp_path / "two", fields=["action", "reward"]) as again:
        again.load_dataset("s3://streams/run", storage_options=s3[0])
        assert [dict(step) for step in again.steps()] == expected
        with pytest.raises(ConfigError, match="storage_options are for URLs"):
            again.load_dataset("user/rows", storage_options=s3[0])
        with pytest.raises((OSError, datasets.exceptions.DatasetsError)) as caught:
            again.load_dataset("s3://streams/absent", storage_options=s3[0])
        assert SECRET not in message_of(caught.value)
