//! What a repository of the hub holds: its commit, and its files with size and checksum.

use serde::Deserialize;

use super::checksum::{Checksum, is_hex};
use super::fetch::Remote;
use super::headers::encoded_part;
use super::network::Network;
use super::reference::{HubRef, is_safe_path};
use super::retry::Refusal;
use crate::exit::Failure;

/// A list is never longer; a repository of 10,000 files takes some 4 MB.
const MAX_LIST_BYTES: u64 = 32 << 20;

/// The files of one commit.
#[derive(Debug)]
pub struct Listing {
    /// 40 hex digits.
    pub commit: String,
    pub files: Vec<HubFile>,
}

/// One of them.
#[derive(Debug, Clone)]
pub struct HubFile {
    /// From the root of the repository; leads nowhere else.
    pub path: String,
    /// Bytes.
    pub size: u64,
    pub checksum: Checksum,
}

/// Why there is no list.
#[derive(Debug)]
pub enum NoListing {
    /// The hub did not answer.
    Unreachable(String),
    /// It did: there is nothing for us.
    Refused(Failure),
}

/// Asks the hub.
pub fn list(network: &Network, hub: &HubRef) -> Result<Listing, NoListing> {
    let revision = encoded_part(hub.revision());
    let url = format!(
        "{}/api/models/{}/revision/{revision}?blobs=true",
        network.hub, hub.repo
    );
    let remote = Remote {
        url: &url,
        token: network.token_for(&url),
        checksum: None,
    };
    let answer = match network.fetcher().ask(&remote, MAX_LIST_BYTES) {
        Ok(answer) => answer,
        Err(Refusal::Next(why) | Refusal::Wrong(why)) => return Err(NoListing::Unreachable(why)),
        Err(Refusal::Local(failure)) => return Err(NoListing::Refused(failure)),
    };
    let said = answer.error.map_or(String::new(), |e| format!(" ({e})"));
    let refused = |problem: String| Err(NoListing::Refused(Failure::Model(problem)));
    let HubRef { repo, explicit, .. } = hub;
    let no_path = if *explicit {
        ":"
    } else {
        ": no such file or directory here, and"
    };
    match answer.status {
        200 => {}
        401 | 403 => {
            return refused(format!(
                "{repo}{no_path} the hub has no such repository, or gives it only to those who have \
                 accepted its terms: look at {}/{repo}, and give a token with --hf-token or HF_TOKEN \
                 (status {}{said})",
                network.hub, answer.status
            ));
        }
        404 => {
            return refused(format!(
                "{repo}{no_path} the hub has no such repository, or none with a revision {} \
                 (status 404{said})",
                hub.revision()
            ));
        }
        status => return Err(NoListing::Unreachable(format!("status {status}{said}"))),
    }
    parse(&answer.body)
        .map_err(|problem| NoListing::Unreachable(format!("the list of files: {problem}")))
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// Reads the hub's answer. Files whose names lead elsewhere are left out.
fn parse(body: &[u8]) -> Result<Listing, String> {
    let info: Info = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if !is_hex(&info.sha, 40) {
        return Err(format!("sha: \"{}\" is not a commit", info.sha));
    }
    let mut files = Vec::new();
    for sibling in info.siblings {
        if !is_safe_path(&sibling.rfilename) {
            log::debug!("left out: {:?}", sibling.rfilename);
            continue;
        }
        files.push(file(sibling)?);
    }
    Ok(Listing {
        commit: info.sha.to_ascii_lowercase(),
        files,
    })
}

fn file(sibling: Sibling) -> Result<HubFile, String> {
    let wrong = |field: &str| format!("{}: no {field}", sibling.rfilename);
    let lfs = sibling.lfs.as_ref();
    let checksum = match lfs {
        Some(lfs) => lfs.sha256.as_deref().and_then(Checksum::sha256),
        None => sibling.blob_id.as_deref().and_then(Checksum::git_blob),
    };
    Ok(HubFile {
        size: lfs
            .and_then(|lfs| lfs.size)
            .or(sibling.size)
            .ok_or_else(|| wrong("size"))?,
        checksum: checksum.ok_or_else(|| wrong("checksum"))?,
        path: sibling.rfilename,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_with_both_kinds_of_files() {
        let (sha, blob, sha256) = ("a".repeat(40), "b".repeat(40), "C".repeat(64));
        let body = format!(
            r#"{{"id": "u/r", "sha": "{sha}", "gated": false, "siblings": [
                {{"rfilename": "config.json", "blobId": "{blob}", "size": 12}},
                {{"rfilename": "../../etc/passwd", "blobId": "{blob}", "size": 12}},
                {{"rfilename": "d/m.gguf", "blobId": "{blob}", "size": 7,
                  "lfs": {{"sha256": "{sha256}", "size": 700, "pointerSize": 7}}}}]}}"#
        );
        let listing = parse(body.as_bytes()).unwrap();
        assert_eq!(listing.commit, sha);
        let read: Vec<_> = listing
            .files
            .iter()
            .map(|f| (f.path.as_str(), f.size, f.checksum.clone()))
            .collect();
        let sha256 = Checksum::Sha256(sha256.to_ascii_lowercase());
        assert_eq!(
            read,
            [
                ("config.json", 12, Checksum::GitBlob(blob)),
                ("d/m.gguf", 700, sha256)
            ]
        );
    }

    #[test]
    fn what_is_missing_in_a_list_is_named() {
        let sha = "a".repeat(40);
        let with = |sibling: &str| format!(r#"{{"sha": "{sha}", "siblings": [{sibling}]}}"#);
        for (body, part) in [
            ("<html>".to_owned(), "expected value"),
            (r#"{"sha": "../x"}"#.to_owned(), "commit"),
            (with(r#"{"rfilename": "m.gguf"}"#), "m.gguf: no size"),
            (
                with(r#"{"rfilename": "m.gguf", "size": 1, "lfs": {"sha256": "x"}}"#),
                "m.gguf: no checksum",
            ),
        ] {
            let problem = parse(body.as_bytes()).unwrap_err();
            assert!(problem.contains(part), "{part}: {problem}");
        }
    }
}
