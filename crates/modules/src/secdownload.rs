//! mod_secdownload: signed links that expire.
//!
//! A link is PREFIX MAC `/` TIME PATH: TIME is when it was made, in hexadecimal seconds since 1970, and MAC
//! signs TIME and PATH with a secret. PATH is served from a document root of its own. A URL of another form
//! belongs to the usual document root. Signatures are compared in constant time.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac::{self, HMAC_SHA1_FOR_LEGACY_USE_ONLY, HMAC_SHA256};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use md5::{Digest as _, Md5};
use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::config::{Diagnostic, Effect};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::settings::Values;
use petrel_engine::settings::core::absolute_root;

/// mod_secdownload.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_secdownload",
    doc: "Serves files through signed links that expire: 403 for a wrong signature, 410 for a link that has expired.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "secdownload.secret", String, Request, "required", Effect::Works,
            "The secret that links are signed with.";
        "secdownload.document-root", String, Request, "required", Effect::Works,
            "The directory that the links lead to.";
        "secdownload.uri-prefix", String, Request, "unset", Effect::Works,
            "The prefix of signed links. It is followed by the signature, a slash, the time in hexadecimal seconds since 1970, and the path below secdownload.document-root. Without this prefix there are no such links. If it is set and another required directive is not, all requests in the scope get 500.";
        "secdownload.timeout", Int, Request, "60", Effect::Works,
            "For how many seconds a link is valid. A link whose time is as far in the future is valid, too.";
        "secdownload.algorithm", String, Request, "md5", Effect::Works,
            "The algorithm of signatures: md5 (hexadecimal, of secret, path and time, which has eight digits), hmac-sha1 or hmac-sha256 (base64url without padding, of a slash, time and path). md5 is for links made by older programs.";
        "secdownload.path-segments", Short, Request, "0", Effect::Works,
            "How many segments of the path are signed. 0: all.";
        "secdownload.hash-querystr", Bool, Request, "disable", Effect::Works,
            "Sign the query string, too, with its question mark.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let values = configure.values;
    let algorithm = algorithm(values)?;
    let text = |name| values.string(name).filter(|text| !text.is_empty());
    let Some(prefix) = text("secdownload.uri-prefix") else {
        return Ok(());
    };
    let (secret, root) = ("secdownload.secret", "secdownload.document-root");
    match (text(secret), text(root)) {
        (Some(secret), Some(root)) => configure.add(
            Phase::Map,
            SignedLinks {
                prefix: prefix.as_bytes().into(),
                root: absolute_root(root).as_ref().into(),
                timeout_s: values.unsigned("secdownload.timeout", 60).into(),
                signer: Signer::new(algorithm, secret.as_bytes()),
                segments: values.unsigned("secdownload.path-segments", 0) as usize,
                signs_query: values.bool("secdownload.hash-querystr").unwrap_or(false),
            },
        ),
        (None, _) => configure.add(Phase::Map, Missing(secret)),
        (_, None) => configure.add(Phase::Map, Missing(root)),
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum LinkAlgorithm {
    Md5,
    HmacSha1,
    HmacSha256,
}

/// The algorithm. Without the directive it is that of lighttpd 1.5, which has only one.
fn algorithm(values: &Values<'_>) -> Result<LinkAlgorithm, Diagnostic> {
    const NAME: &str = "secdownload.algorithm";
    match values.value(NAME).and_then(|value| value.as_str()) {
        None | Some("md5") => Ok(LinkAlgorithm::Md5),
        Some("hmac-sha1") => Ok(LinkAlgorithm::HmacSha1),
        Some("hmac-sha256") => Ok(LinkAlgorithm::HmacSha256),
        Some(other) => {
            let message = format!("{other:?} is none of md5, hmac-sha1 and hmac-sha256");
            Err(values.error(NAME, message))
        }
    }
}

/// A required directive is not set.
struct Missing(&'static str);

impl Hook for Missing {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let outcome = exchange.fail(CauseCode::LinkUnset);
        exchange.log_common_error(
            "map",
            format_args!("{} is not set, so every request is answered 500", self.0),
        );
        outcome
    }
}

struct SignedLinks {
    prefix: Box<[u8]>,
    root: Box<[u8]>,
    timeout_s: u64,
    signer: Signer,
    /// How many segments of the path are signed; 0: all.
    segments: usize,
    signs_query: bool,
}

/// The parts of a link.
#[derive(Debug, PartialEq, Eq)]
struct SignedLink<'u> {
    mac: &'u str,
    time: &'u str,
    made_s: u64,
    /// Begins with a slash.
    path: &'u [u8],
}

impl Hook for SignedLinks {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.physical.is_virtual {
            return Outcome::Next;
        }
        let url = &exchange.request.url;
        let Some(link) = self.link_in(url.path()) else {
            return Outcome::Next;
        };
        if link.made_s.abs_diff(exchange.worker.clock().wall_seconds()) > self.timeout_s {
            return exchange.fail(CauseCode::LinkExpired);
        }
        let mut signed = self.signed_part(link.path).to_vec();
        if self.signs_query && !url.query().is_empty() {
            signed.push(b'?');
            signed.extend_from_slice(url.query());
        }
        if self.signer.has_signed(&link, &signed) {
            // The path of a URL was decoded once and has no dot segments, so it stays below the root.
            exchange.physical.map(&self.root, link.path);
            return Outcome::Next;
        }
        let outcome = exchange.fail(CauseCode::LinkUnsigned);
        if exchange.settings.core.debug.request_handling {
            exchange.log_error("map", format_args!("the signature of the link is wrong"));
        }
        outcome
    }
}

impl SignedLinks {
    /// Parses the decoded `path` of a URL as a link, if it has the form of one.
    fn link_in<'u>(&self, path: &'u [u8]) -> Option<SignedLink<'u>> {
        let behind = path.strip_prefix(&*self.prefix)?;
        let (mac, behind) = behind.split_at_checked(self.signer.mac_bytes())?;
        let is_of_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let behind = behind.strip_prefix(b"/")?;
        let (time, path) = behind.split_at_checked(memchr::memchr(b'/', behind)?)?;
        let has_form = mac.iter().all(is_of_base64)
            && time.iter().all(u8::is_ascii_hexdigit)
            && self.signer.can_have_digits(time.len());
        let (mac, time) = (str::from_utf8(mac).ok()?, str::from_utf8(time).ok()?);
        let made_s = u64::from_str_radix(time, 16).ok()?;
        has_form.then_some(SignedLink {
            mac,
            time,
            made_s,
            path,
        })
    }

    /// The part of `path` that is signed.
    fn signed_part<'u>(&self, path: &'u [u8]) -> &'u [u8] {
        let mut slashes = memchr::memchr_iter(b'/', path);
        let end = match self.segments {
            0 => None,
            segments => slashes.nth(segments),
        };
        path.get(..end.unwrap_or(path.len())).unwrap_or(path)
    }
}

enum Signer {
    /// The secret.
    Md5(Box<[u8]>),
    Hmac(Box<hmac::Key>),
}

impl Signer {
    fn new(algorithm: LinkAlgorithm, secret: &[u8]) -> Signer {
        let by_hmac = |algorithm| Signer::Hmac(Box::new(hmac::Key::new(algorithm, secret)));
        match algorithm {
            LinkAlgorithm::Md5 => Signer::Md5(secret.into()),
            LinkAlgorithm::HmacSha1 => by_hmac(HMAC_SHA1_FOR_LEGACY_USE_ONLY),
            LinkAlgorithm::HmacSha256 => by_hmac(HMAC_SHA256),
        }
    }

    /// The length of a signature as text.
    fn mac_bytes(&self) -> usize {
        match self {
            Signer::Md5(_) => 32,
            Signer::Hmac(key) => (key.algorithm().digest_algorithm().output_len() * 4).div_ceil(3),
        }
    }

    /// Whether a time can have so many digits. In the input of MD5 the time directly follows the path: if any
    /// number of digits were allowed, the link of `/a0` would be valid for `/a` as well.
    fn can_have_digits(&self, digits: usize) -> bool {
        match self {
            Signer::Md5(_) => digits == 8,
            Signer::Hmac(_) => (1..=16).contains(&digits),
        }
    }

    /// Whether the signature of `link` is correct for `signed` and the time.
    fn has_signed(&self, link: &SignedLink<'_>, signed: &[u8]) -> bool {
        match self {
            Signer::Md5(secret) => {
                let digest = Md5::new_with_prefix(secret);
                let digest = digest.chain_update(signed).chain_update(link.time);
                u128::from_str_radix(link.mac, 16).is_ok_and(|mac| {
                    verify_slices_are_equal(&mac.to_be_bytes(), &digest.finalize()).is_ok()
                })
            }
            Signer::Hmac(key) => URL_SAFE_NO_PAD.decode(link.mac).is_ok_and(|mac| {
                let text = [b"/", link.time.as_bytes(), signed].concat();
                hmac::verify(key, &text, &mac).is_ok()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Tree, refusal};
    use petrel_engine::testing::Site;

    const FILES: &[(&str, &str)] = &[
        ("own/a.txt", "signed"),
        ("own/d/index.html", "index"),
        ("secret", "outside"),
        ("a.txt", "of the root"),
    ];

    /// A timeout that is long enough for links made in 2023.
    const LONG: &str = "secdownload.timeout = 1000000000\nsecdownload.secret = \"secret\"\n\
        secdownload.document-root = \"ROOT/own/\"\nsecdownload.uri-prefix = \"/dl/\"\n\
        index-file.names = (\"index.html\")\n";

    // Made with Python's hmac, hashlib and base64.
    const SHA256: &str = "ZTdRvL_18MaUiK1ZgGPnSWxh6A3MZSmnfxFL5OnBdLk/6553f100";
    const SHA256_D: &str = "K0jPjNCCFYf4Teqrjf3dmDkSyFBnBGlwRip6fdlyoro/6553f100";
    const SHA256_QUERY: &str = "mGKH6MHcfvaqygoLgOCKW7fLIX2IuU2TMLcvBsObFWg/6553f100";
    const SHA1: &str = "zZzlQFDKSdN8k48pdV3J-CLOnuk/6553f100";
    const MD5: &str = "e1ee4a76f545e781c678509eec2355c3/6553f100";
    /// The signature of `/a.txt0`.
    const MD5_ZERO: &str = "24aad36e7d8569b7d457635fc416ce07";

    fn site(tree: &Tree, config: &str) -> Site {
        let modules = [
            &MODULE,
            &crate::index_file::MODULE,
            &crate::static_file::MODULE,
        ];
        tree.site(config, &modules)
    }

    /// Checks the answers to links; the rows leave the prefix out.
    #[track_caller]
    fn expect(config: &str, rows: &[(String, u16, &str)]) {
        let tree = Tree::new(FILES);
        let site = site(&tree, &format!("{LONG}{config}"));
        for (link, status, body) in rows {
            let answer = site.get(&format!("/dl/{link}"));
            let found = String::from_utf8_lossy(answer.body()).into_owned();
            assert_eq!(answer.status(), *status, "{link}");
            assert!(*status != 200 || found == *body, "{link}: {found}");
        }
    }

    #[test]
    fn links_of_each_algorithm() {
        for (algorithm, link) in [("hmac-sha256", SHA256), ("hmac-sha1", SHA1), ("md5", MD5)] {
            let config = format!("secdownload.algorithm = \"{algorithm}\"");
            let (mac, time) = link.split_once('/').expect("a link");
            let wrong = match mac.strip_prefix(char::is_alphanumeric) {
                Some(rest) => format!("0{rest}"),
                None => panic!("{mac}"),
            };
            expect(
                &config,
                &[
                    (format!("{link}/a.txt"), 200, "signed"),
                    (format!("{link}/a.txt?x=1"), 200, "signed"),
                    (format!("{link}/%61.txt"), 200, "signed"),
                    (format!("{link}/x/../a.txt"), 200, "signed"),
                    (format!("{wrong}/{time}/a.txt"), 403, ""),
                    (format!("{mac}/6553f101/a.txt"), 403, ""),
                    (format!("{link}/b.txt"), 403, ""),
                    (format!("{link}/a.txt/"), 403, ""),
                    (format!("{mac}/00000001/a.txt"), 410, ""),
                    (format!("{mac}/ffffffff/a.txt"), 410, ""),
                    // These are no links.
                    (format!("{mac}//a.txt"), 404, ""),
                    (format!("{mac}/{time}"), 404, ""),
                    (format!("{mac}/6553f10g/a.txt"), 404, ""),
                    (format!("{mac}x/{time}/a.txt"), 404, ""),
                    (format!("{mac}/000000006553f1000/a.txt"), 404, ""),
                ],
            );
        }
    }

    #[test]
    fn md5_is_what_links_of_older_programs_have() {
        let upper = MD5.to_ascii_uppercase();
        let upper = upper.split('/').next().unwrap_or_default();
        expect(
            "",
            &[
                (format!("{MD5}/a.txt"), 200, "signed"),
                (format!("{upper}/6553f100/a.txt"), 200, "signed"),
                (format!("{MD5_ZERO}/6553f100/a.txt"), 403, ""),
                (format!("{MD5_ZERO}/06553f100/a.txt"), 404, ""),
                (format!("{}/6553f100/a.txt", "-".repeat(32)), 403, ""),
            ],
        );
    }

    const HMAC: &str = "secdownload.algorithm = \"hmac-sha256\"\n";

    #[test]
    fn the_path_stays_below_the_root() {
        let config = format!("{HMAC}secdownload.path-segments = 1");
        let rows = [
            "/d/../../secret",
            "/d/%2e%2e/%2e%2e/secret",
            "/d/..%2f..%2fsecret",
            "/d/%252e%252e/%252e%252e/secret",
            "/d/..%5c..%5csecret",
        ];
        let tree = Tree::new(FILES);
        let options = "server.http-parseopts = (\"url-normalize\" => \"disable\")\n";
        for options in ["", options] {
            let site = site(&tree, &format!("{LONG}{config}\n{options}"));
            for row in rows {
                let answer = site.get(&format!(
                    "/dl/IGOurwbOUQvHiydG027kE8E13safQQyRox5Iz7tsrJo/6553f100{row}"
                ));
                assert!(matches!(answer.status(), 403 | 404), "{row}");
            }
        }
    }

    #[test]
    fn the_first_parts_of_the_path_are_signed() {
        const D: &str = "IGOurwbOUQvHiydG027kE8E13safQQyRox5Iz7tsrJo/6553f100";
        expect(
            &format!("{HMAC}secdownload.path-segments = 1"),
            &[
                (format!("{D}/d/index.html"), 200, "index"),
                (format!("{D}/d/"), 200, "index"),
                (format!("{D}/d"), 301, ""),
                (format!("{D}/d/missing"), 404, ""),
                (format!("{D}/a.txt"), 403, ""),
                (format!("{SHA256}/a.txt"), 200, "signed"),
            ],
        );
        expect(
            &format!("{HMAC}secdownload.path-segments = 2"),
            &[
                (format!("{SHA256_D}/d/"), 200, "index"),
                (format!("{SHA256_D}/d/index.html"), 403, ""),
                (format!("{D}/d/"), 403, ""),
            ],
        );
    }

    #[test]
    fn the_query_is_signed() {
        expect(
            &format!("{HMAC}secdownload.hash-querystr = \"enable\""),
            &[
                (format!("{SHA256_QUERY}/a.txt?x=1"), 200, "signed"),
                (format!("{SHA256_QUERY}/a.txt?x=2"), 403, ""),
                (format!("{SHA256_QUERY}/a.txt"), 403, ""),
                (format!("{SHA256}/a.txt"), 200, "signed"),
                (format!("{SHA256}/a.txt?x=1"), 403, ""),
            ],
        );
    }

    #[test]
    fn an_index_file_belongs_to_the_link_of_its_directory() {
        expect(HMAC, &[(format!("{SHA256_D}/d/"), 200, "index")]);
        let condition = "$PHYSICAL[\"path\"] =~ \"html\" { expire.url = () }\n";
        expect(
            &format!("{HMAC}{condition}"),
            &[(format!("{SHA256_D}/d/"), 200, "index")],
        );
    }

    #[test]
    fn without_a_prefix_there_are_no_links_and_with_one_the_rest_is_required() {
        let tree = Tree::new(FILES);
        let status = |config: &str, target: &str| site(&tree, config).get(target).status();
        let rest = LONG.replace("secdownload.uri-prefix = \"/dl/\"", "");
        assert_eq!(status(&rest, &format!("/dl/{MD5}/a.txt")), 404);
        for name in ["secdownload.secret", "secdownload.document-root"] {
            let lines = LONG.lines().filter(|line| !line.starts_with(name));
            let config: Vec<_> = lines.collect();
            assert_eq!(status(&config.join("\n"), "/a.txt"), 500, "{name}");
        }
        assert_eq!(status(LONG, "/a.txt"), 200);
    }

    #[test]
    fn an_unknown_algorithm_is_refused() {
        let message = refusal("secdownload.algorithm = \"sha1\"", &[&MODULE]);
        assert!(message.contains("\"sha1\" is none of md5"), "{message}");
    }
}
