"""Checkpoints of other projects in object stores, read and written."""

import errno
import uuid
from unittest import mock

import numpy as np
import published
import pytest
import saved
from commands import assert_refused, call
from corpora import content
from fsspec.implementations import memory
from fsspec.registry import _registry

from bert_jax import prediction, storage
from bert_jax.errors import Unavailable, UserError
from bert_jax.interop import checkpoints, convert, tokenizer_files


class Gcs(memory.MemoryFileSystem):
    """Store in memory under `gs://`."""

    protocol = "gs"
    store = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("gs://"))


@pytest.fixture
def url(monkeypatch):
    """Return the URL of a folder that does not exist yet."""
    monkeypatch.setitem(_registry, "gs", Gcs)
    return f"gs://{uuid.uuid4().hex}/model"


def upload(folder, url):
    Gcs().put(f"{folder}/", f"{url}/", recursive=True)


def test_a_folder_in_a_store_reads_like_a_local_one(url, tmp_path):
    """Files in formats that are not read are not copied."""
    folder = published.write("classification", tmp_path / "published")
    upload(folder, url)
    shard = "flax_model-00001-of-00002.msgpack"
    for name in ("tf_model.h5", "flax_model.msgpack", shard):
        Gcs().pipe_file(f"{url}/{name}", b"x")
    fetch = mock.patch.object(Gcs, "get_file", autospec=True, side_effect=Gcs.get_file)
    with fetch as get_file:
        here, there = checkpoints.find(folder), checkpoints.find(url)
    assert str(there) == url
    assert checkpoints.exists(there)
    fetched = {path.rpartition("/")[2] for (_, path, *_), _ in get_file.call_args_list}
    assert fetched == {path.name for path in folder.iterdir()}
    assert checkpoints.read_metadata(there) == checkpoints.read_metadata(here)
    assert checkpoints.fingerprint(there) == checkpoints.fingerprint(here)
    texts = ["aa ab", "ac ad ae af"]
    assert prediction.load(url).classify(texts) == prediction.load(folder).classify(
        texts
    )
    expected = saved.parameters_of(folder)
    for path, value in saved.parameters_of(url).items():
        np.testing.assert_array_equal(value, expected[path])
    # A changed file is read again.
    config = (folder / "config.json").read_text().replace("no side", "none")
    Gcs().pipe_file(f"{url}/config.json", config.encode())
    assert "none" in checkpoints.read_metadata(there).task["labels"]


def test_old_flax_checkpoints_in_a_store_are_read(url, tmp_path):
    folder = published.write("classification", tmp_path / "published")
    published.write_flax(folder)
    (folder / "model.safetensors").unlink()
    upload(folder, url)
    here, there = checkpoints.open_published(folder), checkpoints.open_published(url)
    assert there.fingerprint() == here.fingerprint() and there.shapes == here.shapes


def test_changed_files_are_read_again_beside_a_broken_link(tmp_path):
    folder = published.write("classification", tmp_path / "published")
    (folder / ".#config.json").symlink_to("nowhere")  # as Emacs makes
    checkpoints.open_published(folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace("no side", "none"))
    assert "none" in checkpoints.read_metadata(folder).task["labels"]


def test_messages_name_the_url(url, tmp_path):
    folder = published.write("tagging", tmp_path / "published")
    (shard, *_) = sorted(folder.glob("model-*.safetensors"))
    shard.unlink()
    upload(folder, url)
    with pytest.raises(UserError, match=f"^{url} has no {shard.name}, one of 5"):
        checkpoints.open_published(url)
    Gcs().pipe_file(f"{url}x/config.json", (folder / "config.json").read_bytes())
    Gcs().pipe_file(f"{url}x/pytorch_model.bin", b"x")
    with pytest.raises(
        UserError, match=f"{url}x/pytorch_model.bin is a pickle.*, on a local disk, "
    ):
        checkpoints.open_published(f"{url}x")
    # A native workdir, and a missing folder.
    Gcs().pipe_file(f"{url}y/config.json", b'{"encoder": {}}')
    assert checkpoints.open_published(f"{url}y") is None
    assert checkpoints.open_published(f"{url}z") is None


class HttpError(Exception):
    """Error as in gcsfs, whose errors have no common base class."""

    code = 503


class ClientPayloadError(Exception):
    """Error as in aiohttp, when a download ends early."""


UNREACHABLE = r".* cannot be reached: \w+$"
DISK = "^cannot write to /.*: No space left on device; set TMPDIR to another folder$"


@pytest.mark.parametrize(
    ("request_name", "raised", "kind", "message"),
    [
        ("glob", TimeoutError("silence"), Unavailable, UNREACHABLE),
        ("glob", OSError("forbidden"), UserError, UNREACHABLE),
        ("get_file", ClientPayloadError("cut"), Unavailable, UNREACHABLE),
        ("get_file", OSError("forbidden"), UserError, UNREACHABLE),
        ("get_file", OSError(errno.ENOSPC, "full"), UserError, DISK),
    ],
)
def test_failures_of_a_store_and_of_the_disk_are_told_apart(
    request_name, raised, kind, message, url, tmp_path, monkeypatch
):
    upload(published.write("classification", tmp_path / "published"), url)
    monkeypatch.setattr(Gcs, request_name, mock.Mock(side_effect=raised))
    with pytest.raises(kind, match=message) as error:
        checkpoints.open_published(url)
    assert (url in str(error.value)) == (message == UNREACHABLE)


def test_a_tokenizer_in_a_store_that_fails(url, tmp_path, monkeypatch):
    upload(published.write("classification", tmp_path / "published"), url)
    tokenizer_files.read(storage.path(url))
    monkeypatch.setattr(Gcs, "cat_file", mock.Mock(side_effect=HttpError("later")))
    with pytest.raises(Unavailable, match=rf"^{url}/.* cannot be reached: later$"):
        tokenizer_files.read(storage.path(url))


def test_exports_to_a_store_have_the_same_files(url, tmp_path, monkeypatch):
    folder = str(published.folder("masked_lm"))
    convert.convert(folder, str(tmp_path / "here"), "huggingface")
    move = mock.Mock(wraps=storage.move_into_place)
    monkeypatch.setattr(storage, "move_into_place", move)
    convert.convert(folder, url, "huggingface")
    assert move.call_args.args[1].name == "config.json"
    there = {name.rpartition("/")[2]: Gcs().cat_file(name) for name in Gcs().find(url)}
    assert there == content(tmp_path / "here")
    flags = f"--input={folder}", f"--output={url}", "--to=huggingface"
    assert_refused(call("convert", *flags), f"{url} is not empty; give a new folder")


def test_tensorflow_checkpoints_go_to_a_store_and_back(url, tmp_path):
    """A folder with several checkpoints, and one of them by its common prefix."""
    folder = published.write("masked_lm", tmp_path / "published")
    config = (folder / "config.json").read_text().replace("1e-05", "1e-12")
    (folder / "config.json").write_text(config)
    convert.convert(str(folder), url, "tensorflow")
    expected = saved.parameters_of(folder)
    for name in Gcs().find(url):  # another checkpoint, which is not read
        if ".ckpt" in name:
            Gcs().pipe_file(name.replace("bert_model.ckpt", "model.ckpt-7"), b"x")
    for place in (url, f"{url}/bert_model.ckpt"):
        for path, value in saved.parameters_of(place).items():
            np.testing.assert_array_equal(value, expected[path])


def test_an_upload_that_fails_leaves_nothing(url, monkeypatch):
    folder = published.folder("masked_lm")

    def fail(self, local, path, **kwargs):
        if path.endswith("/config.json"):  # the last one
            assert self.find(url)
            raise TimeoutError("no answer")
        put(self, local, path, **kwargs)

    put = Gcs.put_file
    monkeypatch.setattr(Gcs, "put_file", fail)
    flags = f"--input={folder}", f"--output={url}", "--to=huggingface"
    done = call("convert", *flags)
    assert done.returncode == 1
    assert f"error: cannot write to {url}: no answer" in done.stderr
    assert not Gcs().find(url)
