//! How to reach the network, or not to.

use std::fs;
use std::path::PathBuf;

use super::fetch::Fetcher;
use super::headers::origin;
use super::retry::Patience;
use crate::args::GlobalArgs;
use crate::exit::Failure;

/// The hub's address, unless `HF_ENDPOINT` names a mirror.
const HUB: &str = "https://huggingface.co";

/// What flags and variables say of the network. Not printable: it holds the token.
pub struct Network {
    /// Open no socket, start no pip.
    pub offline: bool,
    pub quiet: bool,
    /// Download although the disk seems too small.
    pub force: bool,
    /// Scheme and host of the hub, without a slash at the end.
    pub hub: String,
    token: Option<String>,
}

impl Network {
    /// As the flags and the hub's usual variables say: `HF_ENDPOINT`, `HF_TOKEN` or else the token
    /// file of its own tools, and `HF_HUB_OFFLINE`.
    pub fn new(global: &GlobalArgs, force: bool) -> Result<Network, Failure> {
        let hub = set("HF_ENDPOINT").map_or(HUB.to_owned(), |hub| {
            hub.trim().trim_end_matches('/').to_owned()
        });
        if !hub.starts_with("https://") && !hub.starts_with("http://") {
            return Err(Failure::Usage(format!(
                "HF_ENDPOINT: \"{hub}\" is not an http or https address"
            )));
        }
        let given = global.hf_token.clone().filter(|t| !t.trim().is_empty());
        let token = given
            .or_else(|| set("HF_TOKEN"))
            .or_else(stored_token)
            .map(|token| token.trim().to_owned())
            .filter(|token| !token.is_empty());
        if let Some(token) = &token
            && !token.bytes().all(|b| b.is_ascii_graphic())
        {
            return Err(Failure::Usage(
                "the hub's token (--hf-token, HF_TOKEN or the token file) holds characters that no \
                 token has"
                    .to_owned(),
            ));
        }
        let hub_offline = set("HF_HUB_OFFLINE")
            .is_some_and(|v| !matches!(v.to_lowercase().as_str(), "0" | "false" | "no" | "off"));
        Ok(Network {
            offline: global.offline || hub_offline,
            quiet: global.quiet,
            force,
            hub,
            token,
        })
    }

    /// The one way to a socket.
    ///
    /// # Panics
    /// If the network is off: callers look for that first, and say what to do instead.
    pub fn fetcher(&self) -> Fetcher {
        assert!(!self.offline, "a download although the network is off");
        Fetcher::new(Patience::default())
    }

    /// The token, for addresses of the hub itself and for no others.
    pub fn token_for(&self, url: &str) -> Option<&str> {
        let at_hub = origin(url).is_some() && origin(url) == origin(&self.hub);
        self.token.as_deref().filter(|_| at_hub)
    }
}

/// `HF_HOME`, or where the hub's own tools put it.
pub fn hub_home() -> Option<PathBuf> {
    set("HF_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(set("XDG_CACHE_HOME")?).join("huggingface")))
        .or_else(|| Some(std::env::home_dir()?.join(".cache").join("huggingface")))
}

fn stored_token() -> Option<String> {
    let path = set("HF_TOKEN_PATH").map(PathBuf::from);
    fs::read_to_string(path.or_else(|| Some(hub_home()?.join("token")))?).ok()
}

/// A variable that holds something.
pub fn set(name: &str) -> Option<String> {
    std::env::var(name)
        .ok()
        .filter(|value| !value.trim().is_empty())
}
