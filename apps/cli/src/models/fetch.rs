//! One file over HTTP: resumed where it was cut, retried, never trusted.

use std::io::Read;
use std::time::Duration;

use ureq::http::{Response, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::checksum::Checksum;
use super::headers::{
    linked_sha256, origin, range_start, redirect_target, retry_after, strong_etag, text_header,
    total_size,
};
use super::partial::{Partial, WriteError};
use super::progress::Progress;
use super::retry::{Patience, Refusal, Setback, setback};

/// Redirects followed for one request.
const MAX_REDIRECTS: u32 = 8;
/// An attempt that brought fewer new bytes than this counts as a failed one.
const PROGRESS_BYTES: u64 = 64 * 1024;

/// What to get.
pub struct Remote<'a> {
    pub url: &'a str,
    /// Sent to the origin of `url`, and to no other one that it redirects to.
    pub token: Option<&'a str>,
    /// What the file must be, where that is known.
    pub checksum: Option<&'a Checksum>,
}

/// A short document that came back, whatever its status.
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
    /// What the hub says about a refusal.
    pub error: Option<String>,
}

/// Downloads files.
pub struct Fetcher {
    agent: Agent,
    patience: Patience,
}

impl Fetcher {
    pub fn new(patience: Patience) -> Fetcher {
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(patience.connect))
            .timeout_connect(Some(patience.connect))
            .timeout_recv_response(Some(patience.stall))
            .timeout_per_read(Some(patience.stall))
            .tls_config(tls)
            .user_agent(concat!("nelumbo/", env!("CARGO_PKG_VERSION")))
            .build();
        Fetcher {
            agent: config.into(),
            patience,
        }
    }

    /// Fills `into` up to its size. The caller compares the hash.
    pub fn fetch(
        &self,
        remote: &Remote,
        into: &mut Partial,
        progress: &mut Progress,
    ) -> Result<(), Refusal> {
        let mut failed = 0;
        // what has to be fetched again is no progress: a server may make us start over each time
        let mut furthest = into.len();
        while !into.is_full() {
            let Err(setback) = self.attempt(remote, into, progress) else {
                continue;
            };
            if into.len() >= furthest + PROGRESS_BYTES {
                failed = 0;
            }
            furthest = furthest.max(into.len());
            self.patience.wait_after(setback, &mut failed, &|line| {
                progress.remark(&format!("download cut: {line}"));
            })?;
        }
        Ok(())
    }

    /// A document of at most `limit` bytes.
    pub fn ask(&self, remote: &Remote, limit: u64) -> Result<Answer, Refusal> {
        self.patience.until_done(|| {
            let response = self.answered(remote, None)?;
            let status = response.status().as_u16();
            let error = text_header(&response, "x-error-message").map(str::to_owned);
            let mut body = Vec::new();
            let mut reader = response.into_body().into_reader().take(limit + 1);
            reader
                .read_to_end(&mut body)
                .map_err(|error| Setback::Again(error.to_string(), None))?;
            if body.len() as u64 > limit {
                return Err(Refusal::Next(format!("sends more than {limit} bytes")).into());
            }
            Ok(Answer {
                status,
                body,
                error,
            })
        })
    }

    /// How long the file is. Asked by getting its first byte, since an address that is signed for
    /// getting alone refuses everything else.
    pub fn size(&self, remote: &Remote) -> Result<u64, Refusal> {
        self.patience.until_done(|| {
            let response = self.answered(remote, Some(("bytes=0-0".to_owned(), None)))?;
            match (response.status().as_u16(), total_size(&response, 0)) {
                (200 | 206, Some(size)) if size > 0 => Ok(size),
                (200 | 206, Some(_)) | (416, _) => {
                    Err(Refusal::Next("the file is empty".to_owned()).into())
                }
                (200 | 206, None) => {
                    Err(Refusal::Next("does not tell how long the file is".to_owned()).into())
                }
                (status, _) => Err(Refusal::Next(format!("status {status}")).into()),
            }
        })
    }

    /// One request, from where `into` ends.
    fn attempt(
        &self,
        remote: &Remote,
        into: &mut Partial,
        progress: &mut Progress,
    ) -> Result<(), Setback> {
        if into.len() > 0 && remote.checksum.is_none() && into.validator(remote.url).is_none() {
            progress.remark(
                "nothing tells whether what was cut is still the same file; starting again",
            );
            into.restart()?;
        }
        let range = (into.len() > 0).then(|| {
            let range = format!("bytes={}-", into.len());
            (range, into.validator(remote.url))
        });
        let response = self.answered(remote, range)?;
        let status = response.status().as_u16();
        match status {
            200 if into.len() > 0 => {
                progress
                    .remark("the server cannot go on where the download was cut; starting again");
                into.restart()?;
            }
            200 => {}
            206 if range_start(&response) == Some(into.len())
                && is_same_version(into.validator(remote.url), remote, &response) => {}
            206 | 416 => {
                into.restart()?;
                return Err(Setback::Again(
                    format!("status {status} with another range"),
                    Some(Duration::ZERO),
                ));
            }
            _ => return Err(Refusal::Next(format!("status {status}")).into()),
        }
        if let Some(total) = total_size(&response, into.len())
            && total != into.known_size()
        {
            let why = format!(
                "holds another file: {total} bytes, expected {}",
                into.known_size()
            );
            return Err(Refusal::Next(why).into());
        }
        let validator = strong_etag(&response).map(|etag| (remote.url, etag));
        into.set_validator(validator)?;
        self.read_body(response, into, progress)
    }

    fn read_body(
        &self,
        response: Response<Body>,
        into: &mut Partial,
        progress: &mut Progress,
    ) -> Result<(), Setback> {
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 256 * 1024];
        loop {
            let read = match body.read(&mut buffer) {
                Ok(0) if !into.is_full() => {
                    return Err(Setback::Again(
                        "the connection ended early".to_owned(),
                        None,
                    ));
                }
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) => return Err(Setback::Again(error.to_string(), None)),
            };
            match into.write(&buffer[..read]) {
                Ok(()) => progress.at(into.len()),
                Err(WriteError::Disk(failure)) => return Err(failure.into()),
                Err(WriteError::TooLong) => {
                    let why = format!("sends more than the expected {} bytes", into.known_size());
                    return Err(Refusal::Wrong(why).into());
                }
            }
        }
    }

    /// As [`Fetcher::request`], where a busy server is a setback.
    fn answered(
        &self,
        remote: &Remote,
        range: Option<(String, Option<String>)>,
    ) -> Result<Response<Body>, Setback> {
        let response = self.request(remote, range)?;
        match response.status().as_u16() {
            status @ (408 | 429 | 500..=599) => Err(Setback::Again(
                format!("status {status}"),
                retry_after(&response),
            )),
            _ => Ok(response),
        }
    }

    /// Sends the request, for a range if it still is of the version beside it, and follows
    /// redirects; the token stays with its origin.
    fn request(
        &self,
        remote: &Remote,
        range: Option<(String, Option<String>)>,
    ) -> Result<Response<Body>, Setback> {
        let mut url = remote.url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.agent.get(&url);
            if let Some((range, version)) = &range {
                request = request.header(header::RANGE, range);
                if let Some(version) = version {
                    request = request.header(header::IF_RANGE, version);
                }
            }
            let at_home = origin(&url) == origin(remote.url);
            if let Some(token) = remote.token.filter(|_| at_home) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = request.call().map_err(setback)?;
            if at_home
                && let Some(expected @ Checksum::Sha256(_)) = remote.checksum
                && let Some(found) = linked_sha256(&response).filter(|it| it != expected.hex())
            {
                let why = format!("holds another file: sha256 {found}, expected {expected}");
                return Err(Refusal::Next(why).into());
            }
            if !response.status().is_redirection() {
                return Ok(response);
            }
            url = redirect_target(&url, text_header(&response, "location"))
                .map_err(|why| Setback::from(Refusal::Next(why)))?;
        }
        Err(Refusal::Next(format!("more than {MAX_REDIRECTS} redirects")).into())
    }
}

/// Whether a part belongs to what came before. A server may ignore the condition it was given; if it
/// does not tell the version either, only a checksum can vouch for the whole.
fn is_same_version(before: Option<String>, remote: &Remote, response: &Response<Body>) -> bool {
    match (before, strong_etag(response)) {
        (Some(before), Some(now)) => before == now,
        (Some(_), None) => remote.checksum.is_some(),
        (None, _) => true,
    }
}

#[cfg(test)]
#[path = "../../tests/support/server.rs"]
mod server;
#[cfg(test)]
#[path = "fetch_tests.rs"]
mod server_tests;
