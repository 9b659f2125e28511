//! A hub on the loopback interface: repositories, their lists and their files.

use nelumbo::formats::Encoding;
use nelumbo::formats::write::{GgufWriter, write_safetensors};
use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::server::{Reply, Request, Server};

/// The commit of `main` in [`Repo::new`].
pub const COMMIT: &str = "1111111111111111111111111111111111111111";

/// Files of a revision of `u/r`.
#[derive(Debug, Clone)]
pub struct Repo {
    pub revision: &'static str,
    pub commit: &'static str,
    pub files: Vec<(String, Vec<u8>)>,
}

impl Repo {
    pub fn new(files: &[(&str, Vec<u8>)]) -> Repo {
        let files = files.iter();
        Repo {
            revision: "main",
            commit: COMMIT,
            files: files.map(|(n, b)| ((*n).to_owned(), b.clone())).collect(),
        }
    }

    /// Weights are known by sha256, small files by git's name.
    fn is_large(name: &str) -> bool {
        name.ends_with(".gguf") || name.ends_with(".safetensors")
    }

    /// As the hub lists them.
    pub fn list(&self) -> serde_json::Value {
        let siblings: Vec<_> = self
            .files
            .iter()
            .map(|(name, bytes)| {
                let mut file = json!({
                    "rfilename": name, "size": bytes.len(), "blobId": git_blob(bytes)
                });
                if Repo::is_large(name) {
                    file["lfs"] = json!({
                        "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 135
                    });
                }
                file
            })
            .collect();
        json!({ "id": "u/r", "sha": self.commit, "siblings": siblings })
    }

    /// Answers what is asked of this revision; `None` for anything else.
    pub fn answer(&self, request: &Request) -> Option<Reply> {
        for revision in [self.revision, self.commit] {
            if request.path == format!("/api/models/u/r/revision/{revision}?blobs=true") {
                return Some(Reply::new(200, self.list().to_string().as_bytes()));
            }
        }
        let prefix = format!("/u/r/resolve/{}/", self.commit);
        let name = request.path.strip_prefix(&prefix)?;
        let (_, bytes) = self.files.iter().find(|(file, _)| file == name)?;
        let reply = Reply::file(bytes, request).with("X-Repo-Commit", self.commit);
        Some(if Repo::is_large(name) {
            let etag = format!("\"{}\"", sha256(bytes));
            reply.with("ETag", etag.clone()).with("X-Linked-Etag", etag)
        } else {
            reply.with("ETag", format!("\"{}\"", git_blob(bytes)))
        })
    }
}

/// A hub with these revisions, which answers well.
pub fn start(repos: Vec<Repo>) -> Server {
    Server::start(move |request, _| answer(&repos, request))
}

/// What such a hub says.
pub fn answer(repos: &[Repo], request: &Request) -> Reply {
    repos
        .iter()
        .find_map(|repo| repo.answer(request))
        .unwrap_or_else(|| Reply::new(404, b"").with("X-Error-Message", "Repository not found"))
}

/// The files that were asked for, without the lists.
pub fn fetched(server: &Server) -> Vec<String> {
    let requests = server.requests().into_iter();
    requests
        .filter_map(|r| {
            Some(
                r.path
                    .split_once("/resolve/")?
                    .1
                    .split_once('/')?
                    .1
                    .to_owned(),
            )
        })
        .collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(hex).collect()
}

pub fn git_blob(bytes: &[u8]) -> String {
    let mut hasher = Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
    hasher.update(bytes);
    hasher.finalize().iter().map(hex).collect()
}

fn hex(byte: &u8) -> String {
    format!("{byte:02x}")
}

/// A GGUF file of exactly `size` bytes, other ones for another `seed`.
pub fn gguf(size: usize, seed: u32) -> Vec<u8> {
    gguf_with(size, seed, GgufWriter::new())
}

/// The same with keys in front.
pub fn gguf_with(size: usize, seed: u32, keys: GgufWriter) -> Vec<u8> {
    // parts of one model may not hold the same tensor
    let name = format!("t{seed:05}");
    let file = |keys: GgufWriter, bytes: &[u8]| {
        keys.tensor(&name, &[bytes.len() / 4], Encoding::F32, bytes)
            .finish()
    };
    let header = file(keys.clone(), &[0; 32]).len() - 32;
    let bytes: Vec<u8> = (0..size - header)
        .map(|i| ((i as u32 * 7 + seed) % 253) as u8)
        .collect();
    let file = file(keys, &bytes);
    assert_eq!(file.len(), size, "{size} is no multiple of 32");
    file
}

/// All parts of a model: names and bytes.
pub fn split_gguf(stem: &str, count: u32, size: usize) -> Vec<(String, Vec<u8>)> {
    let part = |number: u32| {
        let keys = GgufWriter::new()
            .u32("split.no", number)
            .u32("split.count", count)
            .u32("split.tensors.count", count);
        let name = format!("{stem}-{:05}-of-{count:05}.gguf", number + 1);
        (name, gguf_with(size, number, keys))
    };
    (0..count).map(part).collect()
}

/// A model of two shards, with a tokenizer that nobody looks into, and what other files there are.
pub fn sharded() -> Vec<(String, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let shard = |number: u32| {
        let path = folder.path().join("shard");
        let name = format!("w{number}");
        let bytes = vec![number as u8; 4 * 4096];
        write_safetensors(&path, &[(&name, &[4096], Encoding::F32, &bytes)]).unwrap();
        std::fs::read(&path).unwrap()
    };
    let file = |number: u32| format!("model-{number:05}-of-00002.safetensors");
    let index = json!({ "weight_map": { "w1": file(1), "w2": file(2) } });
    let text = |text: &str| text.as_bytes().to_vec();
    vec![
        (".gitattributes".to_owned(), text("x")),
        ("README.md".to_owned(), text("# r")),
        (
            "config.json".to_owned(),
            text("{\"model_type\": \"llama\"}"),
        ),
        ("generation_config.json".to_owned(), text("{\"top_k\": 1}")),
        (file(1), shard(1)),
        (file(2), shard(2)),
        (
            "model.safetensors.index.json".to_owned(),
            text(&index.to_string()),
        ),
        ("original/consolidated.pth".to_owned(), text("pickle")),
        ("tokenizer.json".to_owned(), text("{}")),
        ("tokenizer_config.json".to_owned(), text("{\"a\": 1}")),
    ]
}
