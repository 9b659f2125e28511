//! Reading addresses and response headers.

use std::time::Duration;

use ureq::Body;
use ureq::http::Response;

use super::checksum::is_hex;

/// The longest that a server may ask us to wait before the next try.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Scheme, host and port; `None` for what is no address.
pub fn origin(url: &str) -> Option<(String, String, u16)> {
    let uri: ureq::http::Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_owned();
    let port = uri
        .port_u16()
        .unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some((scheme, uri.host()?.to_ascii_lowercase(), port))
}

/// The absolute address that a redirect leads to.
pub fn redirect_target(from: &str, location: Option<&str>) -> Result<String, String> {
    let location = location.ok_or("a redirect without a target")?;
    let (scheme, rest) = from
        .split_once("://")
        .ok_or("an address without a scheme")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let target = if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        return Err(format!("a redirect to \"{location}\", which is no address"));
    };
    if scheme == "https" && !target.starts_with("https://") {
        return Err("a redirect away from https".to_owned());
    }
    Ok(target)
}

/// A path as part of an address; slashes stay.
pub fn encoded(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The same as one part of it: a branch may have slashes in its name.
pub fn encoded_part(text: &str) -> String {
    encoded(text).replace('/', "%2F")
}

/// A header that is plain text.
pub fn text_header<'r>(response: &'r Response<Body>, name: &str) -> Option<&'r str> {
    response.headers().get(name)?.to_str().ok()
}

/// An `ETag` that promises equal bytes; a weak one does not.
pub fn strong_etag(response: &Response<Body>) -> Option<&str> {
    text_header(response, "etag").filter(|etag| etag.starts_with('"') && !etag.contains('\n'))
}

/// The hub tells the sha256 of a large file before it sends it.
pub fn linked_sha256(response: &Response<Body>) -> Option<String> {
    let text = text_header(response, "x-linked-etag")?.trim_matches('"');
    is_hex(text, 64).then(|| text.to_ascii_lowercase())
}

/// First byte of `Content-Range: bytes 5-9/10`.
pub fn range_start(response: &Response<Body>) -> Option<u64> {
    let range = text_header(response, "content-range")?.strip_prefix("bytes ")?;
    range.split('-').next()?.trim().parse().ok()
}

/// The whole file's size as the server tells it, when `offset` bytes were left out.
pub fn total_size(response: &Response<Body>, offset: u64) -> Option<u64> {
    if let Some(range) = text_header(response, "content-range") {
        return range.rsplit('/').next()?.trim().parse().ok();
    }
    let length: u64 = text_header(response, "content-length")?
        .trim()
        .parse()
        .ok()?;
    length.checked_add(offset)
}

/// `Retry-After` in seconds, within reason.
pub fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let seconds: u64 = text_header(response, "retry-after")?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_differ_by_scheme_host_and_port() {
        let home = origin("https://hub.example/a/b?c");
        assert_eq!(home, origin("https://HUB.example:443/x"));
        for other in [
            "http://hub.example/a",
            "https://cdn.hub.example/a",
            "https://hub.example:8443/",
            "x",
        ] {
            assert_ne!(home, origin(other), "{other}");
        }
    }

    #[test]
    fn odd_names_fit_into_addresses() {
        assert_eq!(encoded("a/m-Q4_K.gguf"), "a/m-Q4_K.gguf");
        assert_eq!(encoded("a b?#%.gguf"), "a%20b%3F%23%25.gguf");
        assert_eq!(encoded("é+"), "%C3%A9%2B");
        assert_eq!(encoded_part("refs/pr 1"), "refs%2Fpr%201");
    }

    #[test]
    fn redirects_are_resolved_or_refused() {
        let from = "https://hub.example:8443/a/b?c=d";
        let to = |location| redirect_target(from, Some(location));
        assert_eq!(to("/x?y").unwrap(), "https://hub.example:8443/x?y");
        assert_eq!(to("//cdn.example/x").unwrap(), "https://cdn.example/x");
        assert_eq!(
            to("https://cdn.example/x").unwrap(),
            "https://cdn.example/x"
        );
        assert!(to("http://hub.example/x").is_err() && to("x").is_err());
        assert!(to("file:///etc/passwd").is_err() && redirect_target(from, None).is_err());
        assert!(redirect_target("http://a/b", Some("https://a/c")).is_ok());
    }
}
