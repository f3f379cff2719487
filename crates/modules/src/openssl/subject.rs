//! The SSL_CLIENT_S_* variables: the subject of a client certificate.

use petrel_engine::rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

/// Names and values of the variables about `certificate`: SSL_CLIENT_S_DN, one variable for each part of the
/// subject, and SSL_CLIENT_M_SERIAL. Empty if the certificate cannot be parsed.
pub(super) fn variables(certificate: &CertificateDer<'_>) -> Vec<(String, Vec<u8>)> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let subject = parsed.subject();
    let mut variables = vec![("SSL_CLIENT_S_DN".to_owned(), one_line(subject).into_bytes())];
    for part in subject.iter_attributes() {
        let value = part.as_slice();
        // A value with a line end could pass for two lines in a log or a header.
        let is_plain = !value.iter().any(u8::is_ascii_control);
        if let Some(name) = short_name(&part.attr_type().to_id_string())
            && is_plain
        {
            variables.push((format!("SSL_CLIENT_S_DN_{name}"), value.to_vec()));
        }
    }
    let serial: String = parsed
        .raw_serial()
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect();
    // DER puts a zero byte in front of a positive number whose highest bit is set. OpenSSL does not print it.
    let serial = match serial.strip_prefix("00") {
        Some(rest) if !rest.is_empty() => rest.to_owned(),
        _ => serial,
    };
    variables.push(("SSL_CLIENT_M_SERIAL".to_owned(), serial.into_bytes()));
    variables
}

/// A name in one line, as OpenSSL prints it: `C = DE, O = "Example, Inc.", CN = a`.
fn one_line(name: &X509Name<'_>) -> String {
    let mut line = String::new();
    for set in name.iter_rdn() {
        for (index, part) in set.iter().enumerate() {
            line += match (line.is_empty(), index) {
                (true, _) => "",
                (false, 0) => ", ",
                (false, _) => " + ",
            };
            let oid = part.attr_type().to_id_string();
            line += short_name(&oid).unwrap_or(&oid);
            line += " = ";
            line += &escaped(part.as_slice());
        }
    }
    line
}

fn escaped(value: &[u8]) -> String {
    let is_special = |byte: &u8| b",+<>;".contains(byte);
    let is_quoted = value.iter().any(is_special)
        || value.first().is_some_and(|first| b"# ".contains(first))
        || value.last() == Some(&b' ');
    let mut text = String::new();
    for character in std::str::from_utf8(value).unwrap_or_default().chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            '\0'..' ' | '\x7f' => text += &format!("\\{:02X}", u32::from(character)),
            _ => text.push(character),
        }
    }
    if text.is_empty() {
        text = value.iter().map(|byte| format!("\\{byte:02X}")).collect();
    }
    match is_quoted {
        true => format!("\"{text}\""),
        false => text,
    }
}

/// OpenSSL's short name for an attribute of a subject.
fn short_name(oid: &str) -> Option<&'static str> {
    let found = SHORT_NAMES.iter().find(|(known, _)| *known == oid);
    found.map(|(_, name)| *name)
}

const SHORT_NAMES: [(&str, &str); 24] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.15", "businessCategory"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.20", "telephoneNumber"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.44", "generationQualifier"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("2.5.4.97", "organizationIdentifier"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];
