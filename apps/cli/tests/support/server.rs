//! A web server on the loopback interface that misbehaves on request.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One request as it came, header names in lower case.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    pub headers: HashMap<String, String>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// N of `Range: bytes=N-`.
    pub fn range_start(&self) -> Option<usize> {
        self.header("range")?
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    }
}

/// What to answer. `Content-Length` is that of the whole body, however little is sent.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Bytes of the body to send before the connection is closed.
    pub send: usize,
    /// How long to hold the connection before that.
    pub hold: Duration,
    /// Whether the length is told.
    pub tell_length: bool,
}

impl Reply {
    pub fn new(status: u16, body: &[u8]) -> Reply {
        Reply {
            status,
            headers: Vec::new(),
            body: body.to_vec(),
            send: body.len(),
            hold: Duration::ZERO,
            tell_length: true,
        }
    }

    /// The file, or the part of it that was asked for.
    pub fn file(body: &[u8], request: &Request) -> Reply {
        match request.range_start() {
            Some(start) if start < body.len() => {
                let range = format!("bytes {start}-{}/{}", body.len() - 1, body.len());
                Reply::new(206, &body[start..]).with("Content-Range", range)
            }
            Some(_) => Reply::new(416, b""),
            None => Reply::new(200, body),
        }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Reply {
        self.headers.push((name, value.into()));
        self
    }

    pub fn cut_after(mut self, bytes: usize) -> Reply {
        self.send = bytes.min(self.body.len());
        self
    }
}

/// Runs until the test's process ends.
pub struct Server {
    pub url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// `answer` gets each request and how many came before it.
    pub fn start(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream, &seen, answer.as_ref()));
            }
        });
        Server { url, requests }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

/// One request a connection. A client that leaves early is its own business.
fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<Request>>,
    answer: &dyn Fn(&Request, usize) -> Reply,
) {
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap())
        .lines()
        .map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let headers = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            line.split_once(": ")
                .map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned()))
        })
        .collect();
    let request = Request { path, headers };
    let count = {
        let mut seen = seen.lock().unwrap();
        seen.push(request.clone());
        seen.len() - 1
    };
    let reply = answer(&request, count);
    let mut head = format!("HTTP/1.1 {} x\r\nConnection: close\r\n", reply.status);
    if reply.tell_length {
        head.push_str(&format!("Content-Length: {}\r\n", reply.body.len()));
    }
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&reply.body[..reply.send]);
    let _ = stream.flush();
    std::thread::sleep(reply.hold);
}
