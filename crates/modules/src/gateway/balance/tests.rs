use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::super::health::BackendFault;
use super::*;

struct Backend {
    key: u64,
    weight: u32,
    load: AtomicU32,
    priority: u16,
    health: Health,
}

impl Candidate for Backend {
    fn key(&self) -> u64 {
        self.key
    }

    fn weight(&self) -> u32 {
        self.weight
    }

    fn load(&self) -> u32 {
        self.load.load(Ordering::Relaxed)
    }

    fn health(&self) -> &Health {
        &self.health
    }

    fn priority(&self) -> u16 {
        self.priority
    }
}

fn backends(weights: &[u32]) -> Vec<Backend> {
    let backend = |(index, weight): (usize, &u32)| Backend {
        key: stable_hash(&[format!("192.0.2.{index}:8080").as_bytes()]),
        weight: *weight,
        load: AtomicU32::new(0),
        priority: 0,
        health: Health::new(Duration::from_secs(1), Duration::from_secs(10)),
    };
    weights.iter().enumerate().map(backend).collect()
}

fn balancer(policy: Balance) -> Balancer {
    Balancer::new(policy, "fastcgi.server/.php", 0)
}

const REQUEST: RequestKey<'static> = RequestKey {
    host: b"example.org",
    path: b"/",
    client: IpAddr::V4(Ipv4Addr::LOCALHOST),
    cookies: b"",
};

fn chosen(balancer: &Balancer, backends: &[Backend], request: &RequestKey<'_>) -> usize {
    let choice = balancer.choose(backends, || *request, &Tried::new(), 0);
    choice.expect("a backend can be used").index
}

fn take_down(backend: &Backend) {
    backend.health.failed(0, BackendFault::Unreachable);
}

fn strain(backend: &Backend) {
    backend.health.failed(0, BackendFault::Overloaded);
}

/// How many of `count` requests with different paths each backend gets.
fn spread(balancer: &Balancer, backends: &[Backend], count: usize) -> Vec<usize> {
    let mut requests = vec![0; backends.len()];
    for index in path_owners(balancer, backends, count) {
        requests[index] += 1;
    }
    requests
}

fn path_owners(balancer: &Balancer, backends: &[Backend], count: usize) -> Vec<usize> {
    let owner = |number: usize| {
        let path = format!("/page/{number}.html");
        let request = RequestKey {
            path: path.as_bytes(),
            ..REQUEST
        };
        chosen(balancer, backends, &request)
    };
    (0..count).map(owner).collect()
}

fn assert_near(requests: &[usize], expected: &[usize], tolerance: usize) {
    for (got, wanted) in requests.iter().zip(expected) {
        let is_near = got.abs_diff(*wanted) <= tolerance;
        assert!(is_near, "{requests:?} instead of {expected:?}");
    }
}

#[test]
fn round_robin_mixes_by_weight() {
    let backends = backends(&[5, 1, 1]);
    let balancer = balancer(Balance::RoundRobin);
    let turn = |_| chosen(&balancer, &backends, &REQUEST);
    let turns: Vec<usize> = (0..14).map(turn).collect();
    assert_eq!(turns, [0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0]);
}

#[test]
fn round_robin_goes_on_evenly_without_one_that_is_down() {
    let backends = backends(&[1, 1, 1]);
    let balancer = balancer(Balance::RoundRobin);
    chosen(&balancer, &backends, &REQUEST);
    take_down(&backends[1]);
    let requests = spread(&balancer, &backends, 100);
    assert_eq!(requests[1], 0);
    assert_near(&requests, &[50, 0, 50], 1);
}

#[test]
fn workers_begin_with_different_backends() {
    let backends = backends(&[1, 1, 1]);
    let first = |worker| {
        let balancer = Balancer::new(Balance::RoundRobin, "a route", worker);
        chosen(&balancer, &backends, &REQUEST)
    };
    assert_eq!([0, 1, 2, 3].map(first), [0, 1, 2, 0]);
}

#[test]
fn the_shortest_queue_for_its_weight_gets_the_request() {
    let backends = backends(&[1, 1, 4]);
    let balancer = balancer(Balance::ShortestQueue);
    for (backend, load) in backends.iter().zip([3, 2, 7]) {
        backend.load.store(load, Ordering::Relaxed);
    }
    assert_eq!(chosen(&balancer, &backends, &REQUEST), 2, "7 / 4 < 2");
    backends[2].load.store(9, Ordering::Relaxed);
    assert_eq!(chosen(&balancer, &backends, &REQUEST), 1, "9 / 4 > 2");
}

#[test]
fn equally_short_queues_take_turns_by_weight() {
    let backends = backends(&[3, 1, 1]);
    backends[2].load.store(1, Ordering::Relaxed);
    let requests = spread(&balancer(Balance::ShortestQueue), &backends, 100);
    assert_eq!(requests, [75, 25, 0]);
}

#[test]
fn queues_fill_by_weight() {
    let backends = backends(&[1, 2, 5]);
    let balancer = balancer(Balance::ShortestQueue);
    for _ in 0..80 {
        let index = chosen(&balancer, &backends, &REQUEST);
        backends[index].load.fetch_add(1, Ordering::Relaxed);
    }
    let loads: Vec<u32> = backends.iter().map(Candidate::load).collect();
    assert_eq!(loads, [10, 20, 50]);
}

#[test]
fn the_hash_spreads_by_weight() {
    let even = spread(&balancer(Balance::Hash), &backends(&[1; 5]), 10_000);
    assert_near(&even, &[2000; 5], 150);
    let uneven = spread(&balancer(Balance::Hash), &backends(&[1, 2, 7]), 10_000);
    assert_near(&uneven, &[1000, 2000, 7000], 150);
}

#[test]
fn with_the_hash_only_what_a_lost_backend_had_moves() {
    for weights in [[1, 1, 1, 1], [1, 2, 3, 4]] {
        let backends = backends(&weights);
        let balancer = balancer(Balance::Hash);
        let before = path_owners(&balancer, &backends, 2000);
        take_down(&backends[2]);
        let after = path_owners(&balancer, &backends, 2000);
        for (before, after) in before.iter().zip(&after) {
            assert_ne!(*after, 2);
            assert!(*before == 2 || before == after);
        }
        assert!(before.contains(&2));
    }
}

#[test]
fn the_hash_hangs_on_keys_and_not_on_places() {
    let forward = backends(&[1, 2, 3]);
    let mut backward = backends(&[1, 2, 3]);
    backward.reverse();
    let balancer = balancer(Balance::Hash);
    let owners = path_owners(&balancer, &forward, 500);
    let mirrored = path_owners(&balancer, &backward, 500);
    assert!(owners.iter().zip(&mirrored).all(|(a, b)| a + b == 2));
}

#[test]
fn a_host_is_part_of_the_hash_and_a_cookie_is_not() {
    let backends = backends(&[1; 16]);
    let balancer = balancer(Balance::Hash);
    let owner = |host, cookies| {
        let request = RequestKey {
            host,
            cookies,
            ..REQUEST
        };
        chosen(&balancer, &backends, &request)
    };
    assert_eq!(owner(b"a.example", b""), owner(b"a.example", b"b=c"));
    let hosts: [&[u8]; 4] = [b"a.example", b"b.example", b"c.example", b"d.example"];
    let first = owner(b"a.example", b"");
    assert!(hosts.iter().any(|host| owner(host, b"") != first));
}

#[test]
fn a_sticky_client_keeps_its_backend_for_all_urls() {
    let backends = backends(&[1; 8]);
    let balancer = balancer(Balance::Sticky);
    let owner = |client: IpAddr, path: &[u8]| {
        let request = RequestKey {
            client,
            path,
            ..REQUEST
        };
        chosen(&balancer, &backends, &request)
    };
    let mut requests = [0; 8];
    for number in 0..800u32 {
        let client = Ipv4Addr::from_bits(0x0a00_0000 + number);
        let index = owner(client.into(), b"/a");
        assert_eq!(owner(client.into(), b"/b"), index);
        assert_eq!(owner(client.to_ipv6_mapped().into(), b"/"), index);
        requests[index] += 1;
    }
    assert_near(&requests, &[100; 8], 40);
    let of_v6 = |number| owner(Ipv6Addr::from_bits(number).into(), b"/");
    assert!((0..100).map(of_v6).any(|index| index != of_v6(0)));
}

#[test]
fn the_first_that_can_be_used_gets_everything() {
    let backends = backends(&[1, 100, 1]);
    let balancer = balancer(Balance::First);
    assert_eq!(spread(&balancer, &backends, 10), [10, 0, 0]);
    take_down(&backends[0]);
    assert_eq!(spread(&balancer, &backends, 10), [0, 10, 0]);
}

#[test]
fn a_cookie_brings_the_client_back() {
    let backends = backends(&[1; 4]);
    let balancer = balancer(Balance::Cookie);
    for (index, backend) in backends.iter().enumerate() {
        let mut field = Vec::new();
        balancer.write_set_cookie(backend, &mut field);
        let pair = field.split(|byte| *byte == b';').next().expect("a pair");
        let cookies = [b"theme=dark; ", pair, b"; last=1"].concat();
        let request = RequestKey {
            cookies: &cookies,
            ..REQUEST
        };
        let set_cookie = false;
        let expected = Ok(Choice { index, set_cookie });
        assert_eq!(
            balancer.choose(&backends, || request, &Tried::new(), 0),
            expected
        );
    }
}

#[test]
fn one_backend_needs_no_cookie() {
    let backends = backends(&[1]);
    let choice = balancer(Balance::Cookie).choose(&backends, || REQUEST, &Tried::new(), 0);
    assert_eq!(choice.map(|choice| choice.set_cookie), Ok(false));
}

#[test]
fn a_cookie_that_cannot_be_followed_is_replaced() {
    let backends = backends(&[1, 1]);
    let balancer = balancer(Balance::Cookie);
    let mut field = Vec::new();
    balancer.write_set_cookie(&backends[1], &mut field);
    take_down(&backends[1]);
    let name = balancer.cookie_name();
    let other = Balancer::new(Balance::Cookie, "another route", 0).cookie_name();
    assert_ne!(name, other);
    let of_no_backend = format!("{name}=00000000");
    let of_another_route = String::from_utf8_lossy(&field).replace(&name, &other);
    let wrong = [
        b"".as_slice(),
        &field,
        name.as_bytes(),
        of_no_backend.as_bytes(),
        of_another_route.as_bytes(),
        b"petrel-backend-=",
        b"petrel-backend-\xff\xff\xff\xff\xff\xff\xff\xff=\xff",
        b";;; =; petrel-backend",
    ];
    for cookies in wrong {
        let request = RequestKey { cookies, ..REQUEST };
        let choice = balancer.choose(&backends, || request, &Tried::new(), 0);
        let index = 0;
        let set_cookie = true;
        assert_eq!(choice, Ok(Choice { index, set_cookie }), "{cookies:?}");
    }
}

#[test]
fn a_cookie_tells_no_address() {
    let backends = backends(&[1]);
    let mut field = Vec::new();
    balancer(Balance::Cookie).write_set_cookie(&backends[0], &mut field);
    let text = String::from_utf8(field).expect("text");
    let (pair, attributes) = text.split_once("; ").expect("attributes");
    let (name, value) = pair.split_once('=').expect("a value");
    assert!(
        name.starts_with("petrel-backend-") && name.len() == 23,
        "{name}"
    );
    assert!(
        value.len() == 8 && hexadecimal(value.as_bytes()).is_some(),
        "{value}"
    );
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Lax");
}

#[test]
fn what_was_tried_is_not_tried_again() {
    let backends = backends(&[1, 1, 1]);
    for policy in POLICIES {
        let balancer = balancer(policy);
        let mut tried = Tried::new();
        let mut seen = [false; 3];
        for _ in 0..3 {
            let choice = balancer.choose(&backends, || REQUEST, &tried, 0);
            let index = choice.expect("one is left").index;
            assert!(!seen[index], "{policy:?}");
            seen[index] = true;
            tried.add(&backends[index]);
        }
        assert_eq!(tried.count(), 3);
        let choice = balancer.choose(&backends, || REQUEST, &tried, 0);
        assert_eq!(choice, Err(NoBackend::Tried));
    }
}

#[test]
fn a_request_tries_so_many_and_no_more() {
    let backends = backends(&[1; 20]);
    let balancer = balancer(Balance::RoundRobin);
    let mut tried = Tried::new();
    while let Ok(choice) = balancer.choose(&backends, || REQUEST, &tried, 0) {
        tried.add(&backends[choice.index]);
        assert!(tried.count() <= TRIES_MAX);
    }
    assert_eq!(tried.count(), TRIES_MAX);
}

#[test]
fn when_all_are_down_there_is_none() {
    let backends = backends(&[1, 1]);
    for policy in POLICIES {
        let balancer = balancer(policy);
        backends.iter().for_each(take_down);
        let choice = balancer.choose(&backends, || REQUEST, &Tried::new(), 999);
        assert_eq!(choice, Err(NoBackend::Down), "{policy:?}");
        let none: [Backend; 0] = [];
        let choice = balancer.choose(&none, || REQUEST, &Tried::new(), 0);
        assert_eq!(choice, Err(NoBackend::Down), "{policy:?}");
    }
}

#[test]
fn after_its_time_a_backend_gets_one_request() {
    for policy in POLICIES {
        let backends = backends(&[1]);
        let balancer = balancer(policy);
        take_down(&backends[0]);
        let choose = || balancer.choose(&backends, || REQUEST, &Tried::new(), 1000);
        assert_eq!(choose().map(|choice| choice.index), Ok(0), "{policy:?}");
        assert_eq!(choose(), Err(NoBackend::Down), "{policy:?}");
        backends[0].health.connected(1000);
        assert_eq!(choose().map(|choice| choice.index), Ok(0), "{policy:?}");
    }
}

#[test]
fn strained_backends_are_the_last_choice() {
    let backends = backends(&[1, 1]);
    for policy in POLICIES {
        let balancer = balancer(policy);
        strain(&backends[0]);
        assert_eq!(spread(&balancer, &backends, 20), [0, 20], "{policy:?}");
        take_down(&backends[1]);
        assert_eq!(spread(&balancer, &backends, 20), [20, 0], "{policy:?}");
        backends[1].health.check_answered(0);
    }
}

#[test]
fn a_greater_priority_waits_until_the_smaller_ones_are_down() {
    let mut backends = backends(&[1, 1, 1]);
    backends[0].priority = 20;
    backends[1].priority = 10;
    backends[2].priority = 10;
    let balancer = balancer(Balance::RoundRobin);
    assert_eq!(spread(&balancer, &backends, 20), [0, 10, 10]);
    take_down(&backends[1]);
    assert_eq!(spread(&balancer, &backends, 20), [0, 0, 20]);
    take_down(&backends[2]);
    assert_eq!(spread(&balancer, &backends, 20), [20, 0, 0]);
}

#[test]
fn what_came_back_gets_its_share_little_by_little() {
    let backends = backends(&[1, 1]);
    take_down(&backends[0]);
    backends[0].health.check_answered(0);
    let balancer = balancer(Balance::RoundRobin);
    let share = |now_ms| {
        let choose = || balancer.choose(&backends, || REQUEST, &Tried::new(), now_ms);
        let is_first = |_: &usize| choose().expect("both are up").index == 0;
        (0..1100).filter(is_first).count()
    };
    assert!(share(0).abs_diff(100) <= 2, "100 to 1000");
    let halfway = share(5000);
    assert!(halfway.abs_diff(390) <= 2, "550 to 1000: {halfway}");
    assert!(share(10_000).abs_diff(550) <= 2);
}

#[test]
fn the_list_may_change_between_choices() {
    for policy in POLICIES {
        let balancer = balancer(policy);
        for count in [3, 1, 64, 200, 2, 0, 5] {
            let backends = backends(&vec![1; count]);
            let choice = balancer.choose(&backends, || REQUEST, &Tried::new(), 0);
            assert_eq!(choice.is_ok(), count > 0);
            assert!(choice.is_ok_and(|choice| choice.index < count) || count == 0);
        }
    }
}

const POLICIES: [Balance; 6] = [
    Balance::ShortestQueue,
    Balance::RoundRobin,
    Balance::Hash,
    Balance::Sticky,
    Balance::First,
    Balance::Cookie,
];
