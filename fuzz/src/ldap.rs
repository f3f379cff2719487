//! LDAP replies are decoded the same in one piece or in many, and no more of them is stored than a message
//! may have. A user name that a client sends is a literal in a filter, whatever characters it has.

use petrel_proto::ldap::{
    LdapDecoder, LdapError, LdapReply, MESSAGE_BYTES_MAX, escape_in_filter, escape_in_name,
    read_filter,
};

pub fn ldap(input: &[u8]) {
    let whole = replies(input, usize::MAX);
    for step in [1, 7] {
        assert_eq!(replies(input, step), whole);
    }
    let _ = read_filter(input);
    let escaped = escape_in_filter(input);
    assert!(read_filter(&[b"(uid=", &*escaped, b")"].concat()).is_ok());
    assert!(!escaped.contains(&b'*'));
    let name = escape_in_name(input);
    assert!(!name.iter().any(|byte| b",+=\"<>;# ".contains(byte)));
}

fn replies(input: &[u8], step: usize) -> (Vec<LdapReply>, Option<LdapError>) {
    let (mut decoder, mut replies) = (LdapDecoder::for_request(1), Vec::new());
    for piece in input.chunks(step.min(input.len()).max(1)) {
        let mut rest = piece;
        while !rest.is_empty() {
            match decoder.feed(rest) {
                Err(error) => return (replies, Some(error)),
                Ok(fed) => {
                    assert!(fed.reply.is_some() || fed.consumed == rest.len());
                    assert!(decoder.held() <= MESSAGE_BYTES_MAX);
                    rest = &rest[fed.consumed..];
                    replies.extend(fed.reply);
                }
            }
        }
    }
    (replies, None)
}
