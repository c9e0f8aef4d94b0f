//! The session against a scripted peer: what a real server would not do on request.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use pgoutput::Frame;

fn pair(buffer_bytes: usize) -> (WalStream, DuplexStream) {
    let (ours, theirs) = duplex(buffer_bytes);
    (WalStream::new(Wire::new(Box::new(ours)), 1), theirs)
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn keepalive(wal_end: u64) -> Vec<u8> {
    let mut body = vec![b'k'];
    body.extend_from_slice(&wal_end.to_be_bytes());
    body.extend_from_slice(&7_i64.to_be_bytes());
    body.push(1);
    message(b'd', &body)
}

fn wal(start: u64, data: &[u8]) -> Vec<u8> {
    let mut body = vec![b'w'];
    body.extend_from_slice(&start.to_be_bytes());
    body.extend_from_slice(&start.to_be_bytes());
    body.extend_from_slice(&8_i64.to_be_bytes());
    body.extend_from_slice(data);
    message(b'd', &body)
}

fn wal_end(frame: &Frame) -> u64 {
    match frame {
        Frame::KeepAlive { wal_end, .. } => wal_end.as_u64(),
        Frame::WalData { .. } => panic!("not a keepalive"),
    }
}

/// A future that is polled once and then dropped.
async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = std::future::ready(()) => None,
    }
}

#[tokio::test]
async fn frames_survive_being_dropped_after_every_byte() {
    let (mut stream, mut server) = pair(1024);
    let mut bytes = wal(0x10, b"Idata");
    bytes.extend(keepalive(0x20));
    let mut frames = Vec::new();
    for byte in bytes {
        server.write_all(&[byte]).await.unwrap();
        if let Some(frame) = poll_once(stream.next_frame()).await {
            frames.push(frame.unwrap());
        }
    }
    assert_eq!(frames.len(), 2);
    assert!(
        matches!(&frames[0], Frame::WalData { start, server_time_micros: 8, data }
        if *start == Lsn::new(0x10) && &data[..] == b"Idata")
    );
    assert_eq!(wal_end(&frames[1]), 0x20);
}

#[tokio::test]
async fn one_wake_up_takes_all_that_has_arrived_within_its_limits() {
    let (mut stream, mut server) = pair(64 * 1024);
    for number in 1..=10 {
        server.write_all(&keepalive(number)).await.unwrap();
    }
    let mut frames = Vec::new();
    stream
        .next_frames(&mut frames, 4, usize::MAX)
        .await
        .unwrap();
    assert_eq!(frames.iter().map(wal_end).collect::<Vec<_>>(), [1, 2, 3, 4]);
    stream
        .next_frames(&mut frames, 100, usize::MAX)
        .await
        .unwrap();
    assert_eq!(frames.len(), 10);
    assert_eq!(stream.try_next_frame().unwrap(), None);

    for _ in 0..10 {
        server.write_all(&wal(1, &[b'I'; 100])).await.unwrap();
    }
    frames.clear();
    stream.next_frames(&mut frames, 100, 250).await.unwrap();
    assert_eq!(frames.len(), 3);
}

#[tokio::test]
async fn a_message_larger_than_the_buffer_arrives_whole() {
    let (mut stream, mut server) = pair(64 * 1024);
    let data = vec![b'x'; 3 * 1024 * 1024];
    let bytes = wal(1, &data);
    let writer = tokio::spawn(async move {
        server.write_all(&bytes).await.unwrap();
        server.write_all(&keepalive(2)).await.unwrap();
        server
    });
    match stream.next_frame().await.unwrap() {
        Frame::WalData { data: arrived, .. } => assert_eq!(arrived, data),
        Frame::KeepAlive { .. } => panic!("not the data"),
    }
    assert_eq!(wal_end(&stream.next_frame().await.unwrap()), 2);
    drop(writer.await.unwrap());
    assert!(matches!(stream.next_frame().await, Err(PgError::Closed)));
}

#[tokio::test]
async fn a_full_socket_never_blocks_a_status_and_keeps_the_newest() {
    // Room for one update and a piece of the next one.
    let (mut stream, mut server) = pair(50);
    for confirmed in 1..=1000 {
        stream
            .send_status(Lsn::new(confirmed), 0, false)
            .await
            .unwrap();
    }
    let mut updates = Vec::new();
    loop {
        let mut update = [0_u8; 39];
        let received = async {
            tokio::select! {
                result = server.read_exact(&mut update) => { result.unwrap(); }
                frame = stream.next_frame() => panic!("unexpected {frame:?}"),
            }
        };
        received.await;
        assert_eq!((update[0], update[5]), (b'd', b'r'));
        let position = u64::from_be_bytes(update[14..22].try_into().unwrap());
        updates.push(position);
        if position == 1000 {
            break;
        }
    }
    // The first, the one that was cut by the full socket, and the newest.
    assert_eq!(updates, [1, 2, 1000]);
}

#[tokio::test]
async fn finishing_sends_the_status_reads_the_backlog_and_says_farewell() {
    let (mut stream, mut server) = pair(256);
    stream.send_status(Lsn::new(0x77), 0, false).await.unwrap();
    let peer = tokio::spawn(async move {
        // A backlog larger than the pipe: without reading, nothing would move.
        for number in 0..100 {
            server.write_all(&wal(number, &[b'I'; 100])).await.unwrap();
        }
        let mut received = [0_u8; 44];
        server.read_exact(&mut received).await.unwrap();
        assert_eq!(received[39..], [b'c', 0, 0, 0, 4]);
        let mut end = message(b'c', b"");
        end.extend(message(b'C', b"COPY 0\0"));
        end.extend(message(b'Z', b"I"));
        server.write_all(&end).await.unwrap();
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
        rest
    });
    let ending = stream.finish(Duration::from_secs(10)).await.unwrap();
    assert_eq!(ending, Ending::Complete);
    assert_eq!(peer.await.unwrap(), [b'X', 0, 0, 0, 4]);
}

#[tokio::test(start_paused = true)]
async fn finishing_gives_up_at_its_deadline() {
    let (stream, server) = pair(1024);
    let ending = stream.finish(Duration::from_secs(5)).await.unwrap();
    assert_eq!(ending, Ending::Deadline);
    drop(server);
}

#[tokio::test]
async fn the_servers_reason_is_kept_and_its_warning_is_an_error() {
    for (tag, body) in [
        (b'E', &b"SFATAL\0VFATAL\0C57P01\0Mbye\0\0"[..]),
        (b'N', &b"SWARNUNG\0VWARNING\0C55000\0Mskipped\0\0"[..]),
    ] {
        let (mut stream, mut server) = pair(1024);
        server.write_all(&keepalive(1)).await.unwrap();
        server
            .write_all(&message(b'N', b"VNOTICE\0C00000\0Mharmless\0\0"))
            .await
            .unwrap();
        server.write_all(&message(tag, body)).await.unwrap();
        let mut frames = Vec::new();
        // The frame before the error is not lost.
        assert!(stream.next_frames(&mut frames, 10, 1000).await.is_err());
        assert_eq!(frames.len(), 1);
    }
}

#[tokio::test]
async fn bytes_that_are_no_protocol_are_errors_and_never_a_panic() {
    for bytes in [
        vec![b'd', 0, 0, 0, 3],
        vec![b'd', 0xFF, 0xFF, 0xFF, 0xFF],
        vec![b'd', 0x7F, 0xFF, 0xFF, 0xFF],
        message(b'd', b""),
        message(b'd', b"w short"),
        message(b'd', b"k short"),
        message(b'd', b"?"),
        message(b'?', b""),
    ] {
        let (mut stream, mut server) = pair(1024);
        server.write_all(&bytes).await.unwrap();
        let error = stream.next_frame().await.unwrap_err();
        assert!(
            matches!(error, PgError::Protocol { .. }),
            "{bytes:?}: {error}"
        );
    }
}

#[test]
fn every_truncation_of_a_row_is_an_error() {
    let mut body = vec![0, 3, 0, 0, 0, 2, b'a', b'b', 0xFF, 0xFF, 0xFF, 0xFF];
    body.extend_from_slice(&[0, 0, 0, 1, b'c']);
    let row = data_row(Bytes::from(body.clone())).unwrap();
    assert_eq!(
        row,
        [
            Some(Bytes::from_static(b"ab")),
            None,
            Some(Bytes::from_static(b"c"))
        ]
    );
    for length in 0..body.len() {
        assert!(
            data_row(Bytes::copy_from_slice(&body[..length])).is_err(),
            "{length}"
        );
    }
}
