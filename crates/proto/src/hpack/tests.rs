use proptest::prelude::*;

use super::*;
use crate::status::Status;

/// A name, a value, and whether it is sensitive.
type Line = (Vec<u8>, Vec<u8>, bool);

fn lines_of(decoder: &mut HpackDecoder, block: &[u8]) -> Result<Vec<Line>, HpackError> {
    let mut lines = Vec::new();
    decoder.decode(block, &mut |line| {
        lines.push((line.name.to_vec(), line.value.to_vec(), line.is_sensitive));
    })?;
    Ok(lines)
}

/// Why a new decoder refuses this block.
fn refusal(block: &[u8]) -> Option<HpackError> {
    lines_of(&mut HpackDecoder::new(TABLE_BYTES), block).err()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let pairs = digits
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).expect("digits"));
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).expect("two hexadecimal digits"))
        .collect()
}

fn plain(lines: &[(&str, &str)]) -> Vec<Line> {
    let line =
        |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec(), false);
    lines.iter().map(line).collect()
}

/// Entries from the newest to the oldest.
fn entries(table: &mut dynamic_table::DynamicTable) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (0..table.len())
        .map(|index| {
            let (name, value) = table.entry(index).expect("it is in the table");
            (text(name), text(value))
        })
        .collect()
}

/// One block of an example: its bytes, its lines, and the table afterwards with its size.
struct Example<'e> {
    hex: &'e str,
    lines: &'e [(&'e str, &'e str)],
    table: &'e [(&'e str, &'e str)],
    size: u32,
}

/// Decodes the blocks of one connection, and encodes their lines with tables of the same size.
fn examples(table_bytes: u32, examples: &[Example<'_>]) {
    let mut decoder = HpackDecoder::new(table_bytes);
    // Its blocks do not say that the table is smaller, those of the RFC neither.
    decoder.table().set_size_max(table_bytes);
    let mut encoder = HpackEncoder::new();
    encoder.table().set_size_max(table_bytes);
    let mut decoder_of_ours = HpackDecoder::new(table_bytes);
    for example in examples {
        let block = bytes(example.hex);
        assert_eq!(lines_of(&mut decoder, &block), Ok(plain(example.lines)));
        let mut ours = Vec::new();
        encoder.begin(&mut ours);
        for (name, value) in example.lines {
            encoder.field(
                &mut ours,
                name.as_bytes(),
                value.as_bytes(),
                Indexing::Indexed,
            );
        }
        assert!(ours.len() <= block.len());
        assert_eq!(
            lines_of(&mut decoder_of_ours, &ours),
            Ok(plain(example.lines))
        );
        let expected: Vec<_> = example
            .table
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        for table in [decoder.table(), encoder.table(), decoder_of_ours.table()] {
            assert_eq!(entries(table), expected);
            assert_eq!(table.size(), example.size);
        }
    }
}

#[test]
fn rfc_7541_c1_integers() {
    for (mask, number, hex) in [(0x1f, 10, "0a"), (0x1f, 1337, "1f 9a 0a"), (0xff, 42, "2a")] {
        let mut out = Vec::new();
        encode::write_integer(&mut out, 0, mask, number);
        assert_eq!(out, bytes(hex));
        let mut rest = decode::Rest { bytes: &out };
        assert_eq!(rest.integer(mask), Ok(number as u32));
        assert!(rest.bytes.is_empty());
    }
}

#[test]
fn rfc_7541_c2_field_lines() {
    examples(
        TABLE_BYTES,
        &[Example {
            hex: "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            lines: &[("custom-key", "custom-header")],
            table: &[("custom-key", "custom-header")],
            size: 55,
        }],
    );
    let mut decoder = HpackDecoder::new(TABLE_BYTES);
    for (hex, name, value, is_sensitive) in [
        (
            "040c 2f73 616d 706c 652f 7061 7468",
            ":path",
            "/sample/path",
            false,
        ),
        (
            "1008 7061 7373 776f 7264 0673 6563 7265 74",
            "password",
            "secret",
            true,
        ),
        ("82", ":method", "GET", false),
    ] {
        let line = (
            name.as_bytes().to_vec(),
            value.as_bytes().to_vec(),
            is_sensitive,
        );
        assert_eq!(lines_of(&mut decoder, &bytes(hex)), Ok(vec![line]));
        assert_eq!(decoder.table().len(), 0);
    }
}

const REQUEST_1: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "www.example.com"),
];
const REQUEST_2: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "www.example.com"),
    ("cache-control", "no-cache"),
];
const REQUEST_3: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/index.html"),
    (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
];

fn requests(hex: [&str; 3]) {
    let tables: [&[(&str, &str)]; 3] = [
        &[(":authority", "www.example.com")],
        &[
            ("cache-control", "no-cache"),
            (":authority", "www.example.com"),
        ],
        &[
            ("custom-key", "custom-value"),
            ("cache-control", "no-cache"),
            (":authority", "www.example.com"),
        ],
    ];
    let lines = [REQUEST_1, REQUEST_2, REQUEST_3];
    let blocks: Vec<_> = (0..3)
        .map(|index| Example {
            hex: hex[index],
            lines: lines[index],
            table: tables[index],
            size: [57, 110, 164][index],
        })
        .collect();
    examples(TABLE_BYTES, &blocks);
}

#[test]
fn rfc_7541_c3_requests_without_huffman_code() {
    requests([
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ]);
}

const REQUESTS_IN_HUFFMAN_CODE: [&str; 3] = [
    "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
    "8286 84be 5886 a8eb 1064 9cbf",
    "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
];

#[test]
fn rfc_7541_c4_requests_with_huffman_code() {
    requests(REQUESTS_IN_HUFFMAN_CODE);
}

#[test]
fn the_requests_of_the_rfc_are_encoded_to_its_bytes() {
    let mut encoder = HpackEncoder::new();
    let lines = [REQUEST_1, REQUEST_2, REQUEST_3];
    for (hex, lines) in REQUESTS_IN_HUFFMAN_CODE.iter().zip(lines) {
        let mut block = Vec::new();
        for (name, value) in lines {
            encoder.field(
                &mut block,
                name.as_bytes(),
                value.as_bytes(),
                Indexing::Indexed,
            );
        }
        assert_eq!(block, bytes(hex));
    }
}

const DATE_21: (&str, &str) = ("date", "Mon, 21 Oct 2013 20:13:21 GMT");
const DATE_22: (&str, &str) = ("date", "Mon, 21 Oct 2013 20:13:22 GMT");
const LOCATION: (&str, &str) = ("location", "https://www.example.com");
const PRIVATE: (&str, &str) = ("cache-control", "private");
const GZIP: (&str, &str) = ("content-encoding", "gzip");
const COOKIE: (&str, &str) = (
    "set-cookie",
    "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
);

/// With a table of 256 bytes: entries have to go.
fn responses(hex: [&str; 3]) {
    let lines: [&[(&str, &str)]; 3] = [
        &[(":status", "302"), PRIVATE, DATE_21, LOCATION],
        &[(":status", "307"), PRIVATE, DATE_21, LOCATION],
        &[(":status", "200"), PRIVATE, DATE_22, LOCATION, GZIP, COOKIE],
    ];
    let tables: [&[(&str, &str)]; 3] = [
        &[LOCATION, DATE_21, PRIVATE, (":status", "302")],
        &[(":status", "307"), LOCATION, DATE_21, PRIVATE],
        &[COOKIE, GZIP, DATE_22],
    ];
    let blocks: Vec<_> = (0..3)
        .map(|index| Example {
            hex: hex[index],
            lines: lines[index],
            table: tables[index],
            size: [222, 222, 215][index],
        })
        .collect();
    examples(256, &blocks);
}

#[test]
fn rfc_7541_c5_responses_without_huffman_code() {
    responses([
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a
         3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04
         677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49
         553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
    ]);
}

#[test]
fn rfc_7541_c6_responses_with_huffman_code() {
    responses([
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e
         919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7
         821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed
         4ee5 b106 3d50 07",
    ]);
}

#[test]
fn a_block_may_be_empty() {
    assert_eq!(refusal(b""), None);
}

#[test]
fn a_block_cut_anywhere_but_between_lines_is_truncated() {
    let block = bytes("8287 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf 0401 2f1f 0001 78");
    assert_eq!(refusal(&block), None);
    for end in 0..block.len() {
        let is_between = [0, 1, 2, 22, 25].contains(&end);
        let expected = (!is_between).then_some(HpackError::Truncated);
        assert_eq!(refusal(&block[..end]), expected, "{end}");
    }
}

#[test]
fn numbers_have_bounds() {
    // A length of 2^32 - 1, which the block has not.
    assert_eq!(
        refusal(&bytes("00 7f80 ffff ff0f")),
        Some(HpackError::Truncated)
    );
    assert_eq!(
        refusal(&bytes("00 7f81 ffff ff0f")),
        Some(HpackError::Integer)
    );
    assert_eq!(
        refusal(&bytes("00 7fff ffff ff7f")),
        Some(HpackError::Integer)
    );
    assert_eq!(
        refusal(&bytes("ff80 8080 8080 00")),
        Some(HpackError::Integer)
    );
    // Zeros are allowed, as long as they are few.
    assert_eq!(refusal(&bytes("0f80 8080 8000 00")), None);
    assert_eq!(refusal(&bytes("ff")), Some(HpackError::Truncated));
}

#[test]
fn an_index_that_no_table_has_is_refused() {
    for hex in [
        "80",
        "be",
        "ff00",
        "7e 00",
        "0f2f 00",
        "1f2f 00",
        "ff80 ffff ff0f",
    ] {
        assert_eq!(refusal(&bytes(hex)), Some(HpackError::Index), "{hex}");
    }
    // The newest entry, and one behind the oldest.
    let entry = "4001 6101 62";
    assert_eq!(refusal(&bytes(&format!("{entry} be"))), None);
    assert_eq!(
        refusal(&bytes(&format!("{entry} bf"))),
        Some(HpackError::Index)
    );
}

#[test]
fn padding_of_huffman_code_is_checked() {
    // "a" is 00011.
    let coded = |code: &str| {
        refusal(
            &[
                &[0x00, 0x01, b'n', 0x80 | bytes(code).len() as u8],
                &bytes(code)[..],
            ]
            .concat(),
        )
    };
    assert_eq!(coded("1f"), None);
    assert_eq!(coded("18"), Some(HpackError::Huffman));
    assert_eq!(coded("1e"), Some(HpackError::Huffman));
    assert_eq!(coded("1fff"), Some(HpackError::Huffman));
    assert_eq!(coded("ff"), Some(HpackError::Huffman));
    assert_eq!(coded(""), None);
    // The end, with and without a symbol before it, and padding after it.
    assert_eq!(coded("ffff fffc"), Some(HpackError::Huffman));
    assert_eq!(coded("ffff ffff"), Some(HpackError::Huffman));
    assert_eq!(coded("1fff ffff ff"), Some(HpackError::Huffman));
    // Eight symbols of five bits: nothing is left for padding.
    assert_eq!(coded("0000 0000 00"), None);
    assert_eq!(coded("0000 0000 00ff"), Some(HpackError::Huffman));
    // A symbol of 28 bits that is cut off.
    assert_eq!(coded("ffff fe2f"), None);
    assert_eq!(coded("ffff fe"), Some(HpackError::Huffman));
}

#[test]
fn every_symbol_has_its_code() {
    for symbol in 0..=255 {
        for text in [
            vec![symbol],
            vec![symbol; 9],
            vec![b'a', symbol, b'X', symbol],
        ] {
            let mut code = Vec::new();
            huffman::encode(&text, &mut code);
            assert_eq!(code.len(), huffman::encoded_length(&text));
            let mut decoded = b"before".to_vec();
            assert_eq!(huffman::decode(&code, &mut decoded), Ok(()));
            assert_eq!(&decoded[6..], text);
        }
    }
    // Spot checks against appendix B.
    for (symbol, hex) in [
        (b'0', "07"),
        (b'!', "fe3f"),
        (b'\\', "fffe1f"),
        (10, "ffff fff3"),
        (249, "ffff ffef"),
    ] {
        let mut code = Vec::new();
        huffman::encode(&[symbol], &mut code);
        assert_eq!(code, bytes(hex), "{symbol}");
    }
}

#[test]
fn the_size_of_the_table_is_set_in_front_of_all_lines_and_at_most_twice() {
    assert_eq!(refusal(&bytes("20")), None);
    assert_eq!(refusal(&bytes("20 3fe1 1f 82")), None);
    assert_eq!(
        refusal(&bytes("20 20 20")),
        Some(HpackError::TableSizeMisplaced)
    );
    assert_eq!(
        refusal(&bytes("82 20")),
        Some(HpackError::TableSizeMisplaced)
    );
    assert_eq!(
        refusal(&bytes("20 82 20")),
        Some(HpackError::TableSizeMisplaced)
    );
    assert_eq!(refusal(&bytes("3fe2 1f")), Some(HpackError::TableSize));
    assert_eq!(refusal(&bytes("3f")), Some(HpackError::Truncated));
}

#[test]
fn a_smaller_table_of_ours_has_to_be_confirmed() {
    let mut decoder = HpackDecoder::new(TABLE_BYTES);
    decoder.set_table_bytes_max(100);
    assert_eq!(
        lines_of(&mut decoder, &[0x82]),
        Err(HpackError::TableSizeMissing)
    );
    let mut decoder = HpackDecoder::new(TABLE_BYTES);
    decoder.set_table_bytes_max(100);
    assert!(lines_of(&mut decoder, &bytes("3f45 82")).is_ok());
    assert_eq!(
        lines_of(&mut decoder, &bytes("3f46")),
        Err(HpackError::TableSize)
    );
}

#[test]
fn a_smaller_table_loses_its_oldest_entries() {
    let mut decoder = HpackDecoder::new(TABLE_BYTES);
    let two = bytes("4001 6101 62 4001 6301 64");
    assert!(lines_of(&mut decoder, &two).is_ok());
    assert!(lines_of(&mut decoder, &bytes("3f24")).is_ok());
    assert_eq!(entries(decoder.table()), [("c".to_owned(), "d".to_owned())]);
    assert_eq!(lines_of(&mut decoder, &[0xbf]), Err(HpackError::Index));
}

#[test]
fn an_entry_larger_than_the_table_leaves_it_empty() {
    let mut decoder = HpackDecoder::new(64);
    assert!(lines_of(&mut decoder, &bytes("3f21 4001 6101 62")).is_ok());
    assert_eq!(decoder.table().len(), 1);
    // A value of 32 bytes: 65 with its name and the overhead.
    let long = [&bytes("4001 6120")[..], &[b'v'; 32]].concat();
    assert!(lines_of(&mut decoder, &long).is_ok());
    assert_eq!((decoder.table().len(), decoder.table().size()), (0, 0));
    let fits = [&bytes("4001 611f")[..], &[b'v'; 31]].concat();
    assert!(lines_of(&mut decoder, &fits).is_ok());
    assert_eq!((decoder.table().len(), decoder.table().size()), (1, 64));
}

#[test]
fn the_name_of_an_entry_that_goes_is_still_that_of_the_new_one() {
    let mut decoder = HpackDecoder::new(64);
    // A value of 20 bytes, under the name of the entry that has to make room for it.
    let block = [
        &bytes("3f21 4004 6e61 6d65 0476 616c 75 7e14")[..],
        &[b'v'; 20],
    ]
    .concat();
    assert!(lines_of(&mut decoder, &block).is_ok());
    assert_eq!(
        entries(decoder.table()),
        [("name".to_owned(), "v".repeat(20))]
    );
}

#[test]
fn every_entry_of_the_static_table_is_found() {
    for index in 1..=static_table::LENGTH {
        let (name, value) = static_table::entry(index).expect("it is in the table");
        let first = static_table::index_of_name(name).expect("it has a name");
        assert!(first <= index && static_table::entry(first).map(|entry| entry.0) == Some(name));
        assert_eq!(static_table::index_of_name(name), Some(first));
        assert_eq!(static_table::index_of_field(first, value), Some(index));
        assert_eq!(static_table::index_of_field(first, b"?"), None);
    }
    for unknown in [&b""[..], b"a", b"agf", b"x-frame-options", b"\0\xff"] {
        assert_eq!(static_table::index_of_name(unknown), None);
    }
    assert_eq!(
        (static_table::entry(0), static_table::entry(62)),
        (None, None)
    );
}

fn encoded(fields: &[(&str, &str, Indexing)]) -> Vec<u8> {
    let mut block = Vec::new();
    let mut encoder = HpackEncoder::new();
    encoder.begin(&mut block);
    for (name, value, indexing) in fields {
        encoder.field(&mut block, name.as_bytes(), value.as_bytes(), *indexing);
    }
    block
}

#[test]
fn what_repeats_takes_one_byte() {
    let server = ("Server", "petrel", Indexing::Indexed);
    let own = ("X-Frame-Options", "DENY", Indexing::Indexed);
    let once = encoded(&[server, own]);
    let lower = ("x-frame-options", "DENY", Indexing::Indexed);
    let twice = encoded(&[server, own, server, lower]);
    assert_eq!(twice, [&once[..], &[0xbf, 0xbe]].concat());
    let other_value = encoded(&[own, ("x-Frame-options", "x", Indexing::Indexed)]);
    assert!(other_value.ends_with(&[0x7e, 0x01, b'x']));
    let lines = lines_of(&mut HpackDecoder::new(TABLE_BYTES), &twice).expect("it is sound");
    let expected = [("server", "petrel"), ("x-frame-options", "DENY")].repeat(2);
    assert_eq!(lines, plain(&expected));
}

#[test]
fn what_is_not_indexed_stays_out_of_the_table() {
    for (indexing, form) in [(Indexing::NotIndexed, 0x00), (Indexing::Never, 0x10)] {
        let line = ("Etag", "\"%\"", indexing);
        let block = encoded(&[line, line]);
        assert_eq!(block, [form | 0x0f, 34 - 15, 3, b'"', b'%', b'"'].repeat(2));
        let sensitive = lines_of(&mut HpackDecoder::new(TABLE_BYTES), &block).expect("it is sound");
        assert!(
            sensitive
                .iter()
                .all(|line| line.2 == (indexing == Indexing::Never))
        );
        assert_eq!(encoded(&[("!", "%", indexing)]), [form, 1, b'!', 1, b'%']);
    }
    let mut kept = Vec::new();
    write_literal(&mut kept, b"ETag", b"\"%\"");
    assert_eq!(kept, encoded(&[("etag", "\"%\"", Indexing::NotIndexed)]));
}

#[test]
fn a_field_that_takes_most_of_the_table_is_not_put_into_it() {
    let long = "v".repeat(3000);
    let mut encoder = HpackEncoder::new();
    let mut block = Vec::new();
    encoder.field(&mut block, b"server", b"petrel", Indexing::Indexed);
    encoder.field(&mut block, b"x-long", long.as_bytes(), Indexing::Indexed);
    assert_eq!(encoder.table().len(), 1);
    let lines = lines_of(&mut HpackDecoder::new(TABLE_BYTES), &block);
    assert_eq!(lines, Ok(plain(&[("server", "petrel"), ("x-long", &long)])));
}

#[test]
fn every_status_is_encoded() {
    let (mut encoder, mut decoder) = (HpackEncoder::new(), HpackDecoder::new(TABLE_BYTES));
    for round in 0..2 {
        for &status in Status::ALL {
            let mut block = Vec::new();
            encoder.status(&mut block, status);
            let digits = status.0.to_string();
            assert_eq!(
                lines_of(&mut decoder, &block),
                Ok(plain(&[(":status", &digits)]))
            );
            assert_eq!(
                round == 1 || static_table::index_of_field(8, digits.as_bytes()).is_some(),
                block.len() == 1
            );
        }
    }
}

#[test]
fn changes_of_the_table_size_are_told_in_the_next_block() {
    let told = |sizes: &[u32]| {
        let mut encoder = HpackEncoder::new();
        sizes
            .iter()
            .for_each(|&size| encoder.set_table_bytes_max(size));
        let (mut block, mut second) = (Vec::new(), Vec::new());
        encoder.begin(&mut block);
        encoder.begin(&mut second);
        assert!(second.is_empty());
        block
    };
    assert_eq!(told(&[]), b"");
    assert_eq!(told(&[65_536, 4096]), b"");
    assert_eq!(told(&[0]), [0x20]);
    assert_eq!(told(&[100]), bytes("3f45"));
    // The peer must have forgotten what we have.
    assert_eq!(told(&[0, 65_536]), bytes("20 3fe1 1f"));
    assert_eq!(told(&[100, 10, 4096, 100]), bytes("2a 3f45"));
}

#[test]
fn secrets_are_never_indexed() {
    let of = |name: &str, value: &str| {
        Indexing::usual(
            static_table::index_of_name(name.as_bytes()),
            value.as_bytes(),
        )
    };
    assert_eq!(of("authorization", "Basic Zm9vOmJhcg=="), Indexing::Never);
    assert_eq!(of("cookie", "id=1"), Indexing::Never);
    assert_eq!(of("set-cookie", "id=1"), Indexing::Never);
    assert_eq!(of("set-cookie", COOKIE.1), Indexing::NotIndexed);
    assert_eq!(of("date", DATE_21.1), Indexing::NotIndexed);
    assert_eq!(of("content-length", "4096"), Indexing::NotIndexed);
    for name in [
        "Server",
        "content-type",
        "x-frame-options",
        "vary",
        "accept-ranges",
    ] {
        assert_eq!(of(name, "?"), Indexing::Indexed, "{name}");
    }
}

/// The table as the RFC describes it, without rings.
#[derive(Default)]
struct PlainTable {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    size_max: usize,
}

impl PlainTable {
    fn shrink_to(&mut self, size: usize) {
        let all = |entries: &[(Vec<u8>, Vec<u8>)]| -> usize {
            entries
                .iter()
                .map(|(name, value)| name.len() + value.len() + 32)
                .sum()
        };
        while all(&self.entries) > size {
            self.entries.pop();
        }
    }

    fn add(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + 32;
        self.shrink_to(self.size_max.saturating_sub(size));
        if size <= self.size_max {
            self.entries.insert(0, (name.to_vec(), value.to_vec()));
        }
    }
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (1..=61usize).prop_map(|index| static_table::entry(index).expect("it is there").0.to_vec()),
        (0..8u8).prop_map(|number| vec![b'x', b'-', b'0' + number]),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(|name| name.to_ascii_lowercase()),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (0..6u8).prop_map(|number| vec![b'v', b'0' + number]),
        "[ -~]{0,60}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..200),
    ]
}

fn indexing() -> impl Strategy<Value = Indexing> {
    prop_oneof![
        4 => Just(Indexing::Indexed),
        1 => Just(Indexing::NotIndexed),
        1 => Just(Indexing::Never),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        blocks in proptest::collection::vec(
            (
                proptest::option::of(0..5000u32),
                proptest::collection::vec((name(), value(), indexing()), 0..30),
            ),
            1..12,
        ),
    ) {
        let (mut encoder, mut decoder) = (HpackEncoder::new(), HpackDecoder::new(5000));
        // Both begin with 4,096 bytes; ours may have more.
        decoder.table().set_size_max(TABLE_BYTES);
        for (size, fields) in blocks {
            if let Some(size) = size {
                encoder.set_table_bytes_max(size);
            }
            let mut block = Vec::new();
            encoder.begin(&mut block);
            for (name, value, indexing) in &fields {
                encoder.field(&mut block, name, value, *indexing);
            }
            let expected: Vec<Line> = fields
                .into_iter()
                .map(|(name, value, indexing)| (name, value, indexing == Indexing::Never))
                .collect();
            prop_assert_eq!(lines_of(&mut decoder, &block), Ok(expected));
            let (ours, theirs) = (encoder.table(), decoder.table());
            prop_assert_eq!((ours.len(), ours.size(), ours.size_max()), (theirs.len(), theirs.size(), theirs.size_max()));
            prop_assert!(ours.size() <= ours.size_max());
            for index in 0..ours.len() {
                prop_assert_eq!(ours.entry(index), theirs.entry(index));
            }
        }
    }

    #[test]
    fn the_rings_hold_what_a_plain_table_holds(
        operations in proptest::collection::vec(
            prop_oneof![
                20 => (name(), value()).prop_map(Ok),
                1 => (0..600u32).prop_map(Err),
            ],
            1..200,
        ),
    ) {
        let mut table = dynamic_table::DynamicTable::new(300);
        let mut plain = PlainTable { size_max: 300, ..PlainTable::default() };
        for operation in operations {
            match operation {
                Ok((name, value)) => {
                    table.add(&name, &value, 7);
                    plain.add(&name, &value);
                }
                Err(size) => {
                    table.set_size_max(size);
                    plain.size_max = size as usize;
                    plain.shrink_to(size as usize);
                }
            }
            prop_assert_eq!(table.len(), plain.entries.len());
            for (index, (name, value)) in plain.entries.iter().enumerate() {
                prop_assert_eq!(table.entry(index), Some((&name[..], &value[..])));
                prop_assert!(table.index_of_name(name).is_some_and(|first| first <= index));
            }
            prop_assert_eq!(table.entry(plain.entries.len()), None);
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(
        blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..4),
    ) {
        let mut decoder = HpackDecoder::new(256);
        for block in blocks {
            let _ = lines_of(&mut decoder, &block);
            prop_assert!(decoder.table().size() <= 4096);
        }
    }

    #[test]
    fn huffman_code_is_undone(text in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (mut code, mut decoded) = (Vec::new(), Vec::new());
        huffman::encode(&text, &mut code);
        prop_assert_eq!(huffman::decode(&code, &mut decoded), Ok(()));
        prop_assert_eq!(decoded, text);
    }

    /// There is one code for each text.
    #[test]
    fn sound_huffman_code_is_what_the_encoder_makes(code in proptest::collection::vec(any::<u8>(), 0..12)) {
        let mut text = Vec::new();
        if huffman::decode(&code, &mut text).is_ok() {
            let mut again = Vec::new();
            huffman::encode(&text, &mut again);
            prop_assert_eq!(again, code);
        }
    }
}

#[test]
fn memory_that_a_block_took_is_given_back() {
    let mut block = Vec::new();
    write_literal(&mut block, b"x", &[b'a'; 20_000]);
    let mut decoder = HpackDecoder::new(4096);
    let mut lengths = Vec::new();
    let take = &mut |line: FieldLine<'_>| lengths.push(line.value.len());
    assert_eq!(decoder.decode(&block, take), Ok(()));
    assert_eq!(lengths, [20_000]);
    assert_eq!(decoder.text_capacity(), 0);
    decoder.table().add(b"a", b"b", 0);
    decoder.release_memory();
    assert_eq!(decoder.table().entry(0), Some((&b"a"[..], &b"b"[..])));
    decoder.table().set_size_max(0);
    decoder.release_memory();
    assert_eq!(decoder.table().capacity(), 0);
    decoder.table().set_size_max(4096);
    decoder.table().add(b"a", b"b", 0);
    assert_eq!(decoder.table().entry(0), Some((&b"a"[..], &b"b"[..])));
}
