//! What the decoder refuses, and the words it does so in.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use postrider_pgoutput::{DecodeReason, Decoder, MessageKind, ProtocolVersion};

const STREAM_START: &[u8] = b"S\0\0\0\x07\x01";

fn refusal(decoder: &mut Decoder, data: &[u8]) -> String {
    decoder
        .decode(Bytes::copy_from_slice(data))
        .unwrap_err()
        .to_string()
}

fn refusal_in_v1(data: &[u8]) -> String {
    refusal(&mut Decoder::new(ProtocolVersion::V1), data)
}

#[test]
fn no_message_and_unknown_messages() {
    assert_eq!(
        refusal_in_v1(b""),
        "cannot read pgoutput message: message tag at byte 0: cut off: 1 bytes needed, 0 left"
    );
    assert_eq!(
        refusal_in_v1(b"Zebra"),
        "cannot read pgoutput message: message tag at byte 0: unknown message tag 'Z'"
    );
    for tag in 0..=u8::MAX {
        let error = Decoder::new(ProtocolVersion::V4)
            .decode(Bytes::from(vec![tag]))
            .err();
        match MessageKind::from_tag(tag) {
            Some(kind) => {
                assert_eq!(kind.tag(), tag);
                assert_eq!(error.unwrap().kind(), Some(kind));
            }
            None => {
                let error = error.unwrap();
                assert_eq!(error.reason(), DecodeReason::UnknownMessage { tag });
                assert_eq!((error.kind(), error.offset()), (None, 0));
            }
        }
    }
}

#[test]
fn counts_that_the_message_cannot_hold() {
    assert_eq!(
        refusal_in_v1(b"I\0\0\0\x01N\x7f\xffnn"),
        "cannot read pgoutput message Insert ('I'): number of columns at byte 6: \
         impossible count 32767: 2 bytes left"
    );
    assert_eq!(
        refusal_in_v1(b"I\0\0\0\x01N\xff\xffnn"),
        "cannot read pgoutput message Insert ('I'): number of columns at byte 6: \
         impossible count -1: 2 bytes left"
    );
    assert_eq!(
        refusal_in_v1(b"R\0\0\0\x01public\0t\0d\x06\x40\0id\0"),
        "cannot read pgoutput message Relation ('R'): number of columns at byte 15: \
         impossible count 1600: 4 bytes left"
    );
    assert_eq!(
        refusal_in_v1(b"T\x7f\xff\xff\xff\0\0\0\0\x01"),
        "cannot read pgoutput message Truncate ('T'): number of relations at byte 1: \
         impossible count 2147483647: 4 bytes left"
    );
    assert_eq!(
        refusal_in_v1(b"T\xff\xff\xff\xff\0\0\0\0\x01"),
        "cannot read pgoutput message Truncate ('T'): number of relations at byte 1: \
         impossible count -1: 4 bytes left"
    );
}

#[test]
fn lengths_that_the_message_cannot_hold() {
    assert_eq!(
        refusal_in_v1(b"I\0\0\0\x01N\0\x01t\xff\xff\xff\xff"),
        "cannot read pgoutput message Insert ('I'): column length at byte 9: negative length -1"
    );
    assert_eq!(
        refusal_in_v1(b"I\0\0\0\x01N\0\x01b\x7f\xff\xff\xffx"),
        "cannot read pgoutput message Insert ('I'): column value at byte 13: \
         cut off: 2147483647 bytes needed, 1 left"
    );
    assert_eq!(
        refusal_in_v1(b"M\0\0\0\0\0\0\0\0\x01p\0\x80\0\0\0"),
        "cannot read pgoutput message Message ('M'): content length at byte 12: \
         negative length -2147483648"
    );
    assert_eq!(
        refusal_in_v1(b"O\0\0\0\0\0\0\0\x01name"),
        "cannot read pgoutput message Origin ('O'): origin name at byte 9: \
         no NUL byte in the 4 bytes left"
    );
}

#[test]
fn bytes_without_a_meaning() {
    assert_eq!(
        refusal_in_v1(b"I\0\0\0\x01N\0\x02n\xff"),
        "cannot read pgoutput message Insert ('I'): column tag at byte 9: \
         unknown byte 0xff, wanted one of n, u, t, b"
    );
    assert_eq!(
        refusal_in_v1(b"I\0\0\0\x01K\0\x01n"),
        "cannot read pgoutput message Insert ('I'): row tag at byte 5: \
         unknown byte 'K', wanted one of N"
    );
    assert_eq!(
        refusal_in_v1(b"U\0\0\0\x01K\0\x01nO\0\x01n"),
        "cannot read pgoutput message Update ('U'): row tag at byte 9: \
         unknown byte 'O', wanted one of N"
    );
    assert_eq!(
        refusal_in_v1(b"D\0\0\0\x01N\0\x01n"),
        "cannot read pgoutput message Delete ('D'): row tag at byte 5: \
         unknown byte 'N', wanted one of K, O"
    );
    assert_eq!(
        refusal_in_v1(b"R\0\0\0\x01\0t\0x\0\0"),
        "cannot read pgoutput message Relation ('R'): replica identity at byte 8: \
         unknown byte 'x', wanted one of d, n, f, i"
    );
}

#[test]
fn kinds_out_of_place() {
    assert_eq!(
        refusal_in_v1(STREAM_START),
        "cannot read pgoutput message Stream Start ('S'): message tag at byte 0: \
         needs protocol version 2, this session speaks version 1"
    );
    assert_eq!(
        refusal_in_v1(b"p"),
        "cannot read pgoutput message Stream Prepare ('p'): message tag at byte 0: \
         needs protocol version 3, this session speaks version 1"
    );
    let mut decoder = Decoder::new(ProtocolVersion::V2);
    assert_eq!(
        refusal(&mut decoder, b"E"),
        "cannot read pgoutput message Stream Stop ('E'): message tag at byte 0: \
         not allowed outside a streamed block"
    );
    decoder.decode(Bytes::from_static(STREAM_START)).unwrap();
    assert!(decoder.is_in_stream());
    for tag in *b"BCSAcbPKrp" {
        let error = decoder.decode(Bytes::from(vec![tag])).unwrap_err();
        assert_eq!(error.reason(), DecodeReason::InsideStream, "{error}");
    }
    assert!(decoder.is_in_stream());
    decoder.decode(Bytes::from_static(b"E")).unwrap();
    assert!(!decoder.is_in_stream());
}

#[test]
fn abort_details_only_in_version_4() {
    let data = Bytes::from_static(b"A\0\0\0\x07\0\0\0\x08\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02");
    for version in [
        ProtocolVersion::V1,
        ProtocolVersion::V2,
        ProtocolVersion::V3,
    ] {
        let error = Decoder::new(version).decode(data.clone()).unwrap_err();
        assert_eq!(error.reason(), DecodeReason::LeftOver { count: 16 });
        Decoder::new(version).decode(data.slice(..9)).unwrap();
    }
    Decoder::new(ProtocolVersion::V4)
        .decode(data.clone())
        .unwrap();
    Decoder::new(ProtocolVersion::V4)
        .decode(data.slice(..9))
        .unwrap();
}
