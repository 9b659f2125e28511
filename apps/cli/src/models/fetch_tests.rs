//! The fetcher against servers that cut, stall, redirect and lie.

use std::time::Instant;

use sha2::{Digest, Sha256};

use super::server::{Reply, Request, Server};
use super::*;
use crate::models::checksum::hex;

/// Seven parts, each large enough to count as progress.
const PART: usize = 70 * 1024;

fn body() -> Vec<u8> {
    (0..7 * PART).map(|i| (i * 31 % 251) as u8).collect()
}

/// Little of it.
fn patience() -> Patience {
    Patience {
        connect: Duration::from_secs(2),
        stall: Duration::from_millis(400),
        attempts: 3,
        backoff: Duration::from_millis(1),
    }
}

/// Fetches `body()` from `url`, with little patience; the hash is checked on success.
fn fetch(url: &str, folder: &tempfile::TempDir) -> Result<(), Refusal> {
    let size = body().len() as u64;
    let sha256 = Checksum::Sha256(hex(&Sha256::digest(body())));
    let target = folder.path().join("m");
    let mut into = Partial::open(&target, Some(size), Some(sha256.clone())).unwrap();
    let remote = Remote {
        url,
        token: Some("secret"),
        checksum: Some(&sha256),
    };
    Fetcher::new(patience()).fetch(&remote, &mut into, &mut Progress::start("m", size, true))?;
    assert_eq!(into.verify().unwrap(), sha256);
    Ok(())
}

fn fetch_from(
    answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
) -> (Result<(), Refusal>, Vec<Request>) {
    let server = Server::start(answer);
    let folder = tempfile::tempdir().unwrap();
    let result = fetch(&format!("{}/m", server.url), &folder);
    (result, server.requests())
}

fn next_reason(result: Result<(), Refusal>) -> String {
    match result {
        Err(Refusal::Next(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn cut_at_every_seventh_it_goes_on_from_there() {
    let (result, requests) = fetch_from(|request, _| {
        Reply::file(&body(), request)
            .with("ETag", "\"v1\"")
            .cut_after(PART)
    });
    result.unwrap();
    let starts: Vec<_> = requests.iter().map(Request::range_start).collect();
    assert_eq!(starts.len(), 7);
    assert_eq!(starts[0], None);
    for (i, request) in requests.iter().enumerate().skip(1) {
        assert_eq!(request.range_start(), Some(i * PART));
        assert_eq!(request.header("if-range"), Some("\"v1\""));
    }
}

#[test]
fn a_file_that_changed_meanwhile_starts_again() {
    // a server that heeds If-Range, and one that does not
    for heeds in [true, false] {
        let (result, requests) = fetch_from(move |request, count| {
            if count == 0 {
                let old = vec![0; body().len()];
                return Reply::new(200, &old).with("ETag", "\"v1\"").cut_after(PART);
            }
            let reply = match request.header("if-range") {
                Some(version) if heeds && version != "\"v2\"" => Reply::new(200, &body()),
                _ => Reply::file(&body(), request),
            };
            reply.with("ETag", "\"v2\"")
        });
        result.unwrap();
        let ranges: Vec<_> = requests.iter().map(Request::range_start).collect();
        let expected: &[_] = match heeds {
            true => &[None, Some(PART)],
            false => &[None, Some(PART), None],
        };
        assert_eq!(ranges, expected);
    }
}

#[test]
fn a_body_that_is_always_short_is_given_up() {
    let short = body().len() - 10;
    let (result, requests) = fetch_from(move |request, _| {
        let start = request.range_start().unwrap_or(0);
        Reply::file(&body(), request).cut_after(short - start)
    });
    assert!(next_reason(result).contains("3 attempts"));
    // the first brought something; none of the three after it did
    assert_eq!(requests[1].range_start(), Some(short));
    assert!(requests.len() <= 4, "{}", requests.len());
}

/// Where the requests of a fetch without a checksum began.
fn starts_without_checksum(
    answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
) -> Vec<Option<usize>> {
    let server = Server::start(answer);
    let folder = tempfile::tempdir().unwrap();
    let size = body().len() as u64;
    let mut into = Partial::open(&folder.path().join("m"), None, None).unwrap();
    let url = format!("{}/m", server.url);
    let remote = Remote {
        url: &url,
        token: None,
        checksum: None,
    };
    let fetcher = Fetcher::new(patience());
    into.set_size(size).unwrap();
    fetcher
        .fetch(&remote, &mut into, &mut Progress::start("m", size, true))
        .unwrap();
    assert_eq!(into.verify().unwrap().hex(), hex(&Sha256::digest(body())));
    server.requests().iter().map(Request::range_start).collect()
}

#[test]
fn what_nothing_vouches_for_is_not_resumed() {
    let starts = starts_without_checksum(|request, count| {
        let reply = Reply::file(&body(), request);
        if count == 0 {
            reply.cut_after(PART)
        } else {
            reply
        }
    });
    assert_eq!(starts, [None, None]);
    // the first version had a name; what follows it has none, and is of another version
    let starts = starts_without_checksum(|request, count| match count {
        0 => Reply::new(200, &vec![0; body().len()])
            .with("ETag", "\"v1\"")
            .cut_after(PART),
        _ => Reply::file(&body(), request),
    });
    assert_eq!(starts, [None, Some(PART), None]);
}

#[test]
fn a_size_is_asked_for_before_the_bytes() {
    let size = |answer: fn(&Request, usize) -> Reply| {
        let server = Server::start(answer);
        let url = format!("{}/m", server.url);
        let remote = Remote {
            url: &url,
            token: None,
            checksum: None,
        };
        Fetcher::new(patience()).size(&remote)
    };
    let whole = body().len() as u64;
    assert_eq!(size(|_, _| Reply::new(200, &body())).unwrap(), whole);
    let part = |_: &Request, _| Reply::new(206, b"x").with("Content-Range", "bytes 0-0/77");
    assert_eq!(size(part).unwrap(), 77);
    let busy = |_: &Request, count| match count {
        0 => Reply::new(429, b"").with("Retry-After", "0"),
        _ => Reply::new(200, &body()),
    };
    assert_eq!(size(busy).unwrap(), whole);
    for (answer, why) in [
        (
            (|_, _| Reply::new(404, b"")) as fn(&Request, usize) -> Reply,
            "status 404",
        ),
        (|_, _| Reply::new(200, b""), "empty"),
        (
            |_, _| {
                let mut reply = Reply::new(200, &body());
                reply.tell_length = false;
                reply
            },
            "does not tell",
        ),
    ] {
        match size(answer) {
            Err(Refusal::Next(found)) => assert!(found.contains(why), "{why}: {found}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_server_without_ranges_starts_again() {
    let (result, requests) = fetch_from(|_, count| {
        let reply = Reply::new(200, &body());
        if count == 0 {
            reply.cut_after(3 * PART)
        } else {
            reply
        }
    });
    result.unwrap();
    assert_eq!(requests.len(), 2);
}

#[test]
fn a_range_that_was_not_asked_for_starts_again() {
    let (result, requests) = fetch_from(|request, count| match count {
        0 => Reply::file(&body(), request).cut_after(PART),
        1 => Reply::new(206, &body()[5..])
            .with("Content-Range", format!("bytes 5-9/{}", body().len())),
        _ => Reply::file(&body(), request),
    });
    result.unwrap();
    assert_eq!(
        requests
            .iter()
            .map(Request::range_start)
            .collect::<Vec<_>>(),
        [None, Some(PART), None]
    );
}

#[test]
fn a_server_that_makes_us_start_again_each_time_is_given_up() {
    let (result, requests) = fetch_from(|request, _| match request.range_start() {
        None => Reply::new(200, &body()).cut_after(PART),
        Some(_) => Reply::new(416, b""),
    });
    assert!(next_reason(result).contains("3 attempts"));
    assert_eq!(requests.len(), 3);
}

#[test]
fn a_busy_server_is_asked_again_after_what_it_says() {
    let start = Instant::now();
    let (result, requests) = fetch_from(|request, count| match count {
        0 => Reply::new(429, b"").with("Retry-After", "1"),
        1 => Reply::new(503, b""),
        _ => Reply::file(&body(), request),
    });
    result.unwrap();
    assert_eq!(requests.len(), 3);
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_server_that_always_fails_or_stalls_is_given_up() {
    let (result, requests) = fetch_from(|_, _| Reply::new(500, b""));
    assert!(next_reason(result).contains("status 500 (3 attempts)"));
    assert_eq!(requests.len(), 3);

    let start = Instant::now();
    let (result, requests) = fetch_from(|_, _| {
        let mut reply = Reply::new(200, &body()).cut_after(10);
        reply.hold = Duration::from_secs(20);
        reply
    });
    assert!(next_reason(result).contains("3 attempts"));
    assert_eq!(requests.len(), 3);
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_refusal_is_not_repeated() {
    for status in [401, 403, 404, 451] {
        let (result, requests) = fetch_from(move |_, _| Reply::new(status, b""));
        assert_eq!(next_reason(result), format!("status {status}"));
        assert_eq!(requests.len(), 1);
    }
}

#[test]
fn another_file_is_seen_before_its_bytes_are_taken() {
    let (result, _) = fetch_from(|_, _| Reply::new(200, b"<html>log in here</html>"));
    assert!(next_reason(result).contains("holds another file: 24 bytes"));
    let other = "0".repeat(64);
    let (result, _) = fetch_from(move |_, _| {
        Reply::new(302, b"")
            .with("Location", "http://127.0.0.1:9/")
            .with("X-Linked-Etag", format!("\"{other}\""))
    });
    assert!(next_reason(result).contains("sha256 0000"));
}

#[test]
fn the_token_stays_with_its_origin() {
    let other = Server::start(|request, _| Reply::file(&body(), request));
    let target = format!("{}/blob", other.url);
    let (result, requests) = fetch_from(move |request, _| match request.path.as_str() {
        "/m" => Reply::new(307, b"").with("Location", "/moved"),
        _ => Reply::new(302, b"").with("Location", target.clone()),
    });
    result.unwrap();
    let tokens: Vec<_> = requests.iter().map(|r| r.header("authorization")).collect();
    assert_eq!(tokens, [Some("Bearer secret"), Some("Bearer secret")]);
    assert_eq!(other.requests().len(), 1);
    assert_eq!(other.requests()[0].header("authorization"), None);
}

#[test]
fn endless_redirects_end() {
    let (result, requests) = fetch_from(|_, _| Reply::new(302, b"").with("Location", "/again"));
    assert!(next_reason(result).contains("redirects"));
    assert_eq!(requests.len(), MAX_REDIRECTS as usize + 1);
}

#[test]
fn nobody_listening_falls_through_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let start = Instant::now();
    next_reason(fetch(&format!("http://{free}/m"), &folder));
    assert!(start.elapsed() < Duration::from_secs(2));
}
