//! What the verbs say of servers that break off, and of those that are older than they.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use cellwright_tests::binary::{Ran, cellwright};

/// Has the program push a bundle to a server that does that with the first request that comes.
fn push_to(serve: impl FnOnce(&mut TcpStream) + Send) -> Ran {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Connections that bring nothing only look whether somebody listens.
            let mut asking = listener.incoming().map(Result::unwrap).filter(|stream| stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0));
            serve(&mut asking.next().unwrap());
        });
        cellwright(&["push", "examples/digits", "--server", &url], "")
    })
}

fn read_upload(stream: &mut TcpStream) {
    let (mut upload, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    while !upload.ends_with(b"\r\n0\r\n\r\n") {
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0, "the upload broke off");
        upload.extend_from_slice(&piece[..read]);
    }
}

fn answer(stream: &mut TcpStream, status: &str, body: &str) {
    read_upload(stream);
    write!(stream, "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
}

fn refused(ran: Ran) -> String {
    assert_eq!(ran.status, Some(1), "{}\n{}", ran.stdout, ran.stderr);
    ran.stderr
}

#[test]
fn nobody_is_told_that_there_is_no_new_version_where_that_is_not_known() {
    let unknown = "error: it is unknown whether model `digits` has a new version: see `cellwright models show digits`: ";
    let begun = refused(push_to(|stream| stream.read_exact(&mut [0; 100]).unwrap()));
    assert!(begun.starts_with(unknown), "{begun}");
    let whole = refused(push_to(read_upload));
    assert!(whole.starts_with(unknown), "{whole}");
    let unreadable = refused(push_to(|stream| answer(stream, "200 OK", "<html>")));
    assert!(unreadable.starts_with(unknown), "{unreadable}");
    let late = refused(push_to(|stream| answer(stream, "504 Gateway Timeout", "<html>")));
    assert!(late.starts_with(unknown), "{late}");

    let known = "error: model `digits` has no new version: ";
    let wrong = refused(push_to(|stream| answer(stream, "400 Bad Request", r#"{"error":"it will not do"}"#)));
    assert_eq!(wrong, format!("{known}it will not do (status 400)\n"));
    let nowhere = refused(cellwright(&["push", "examples/digits", "--server", "http://nowhere.invalid"], ""));
    assert!(nowhere.starts_with(known), "{nowhere}");
}

#[test]
fn what_an_older_server_does_not_say_of_samples_is_not_made_up() {
    let uploaded =
        |samples: &str| format!(r#"{{"model":"digits","version":1,"digest":"ab","samples":[{samples}],"existed":false,"activated":true}}"#);
    let older = push_to(|stream| answer(stream, "200 OK", &uploaded(r#"{"name":"a","ok":true},{"name":"b","ok":true}"#)));
    assert_eq!(older.stdout, "digits version 1 serves now\ndigest ab\n2 samples passed\n", "{}", older.stderr);
    let newer = r#"{"name":"a","ok":true,"compared":true},{"name":"b","ok":true,"compared":false}"#;
    let newer = push_to(|stream| answer(stream, "200 OK", &uploaded(newer)));
    assert!(newer.stdout.ends_with("\n2 samples passed; 1 compared with expected answers, 1 only run\n"), "{}", newer.stdout);
}
