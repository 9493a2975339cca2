//! Asks name servers directly (RFC 1035): those of `resolv_conf`, and for the serial number of a zone, for
//! which the operating system has no call. The functions block, so they are for the resolver's threads only.
//! Answers come from the network and are checked accordingly.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};

use super::conf::ResolvConf;

/// The buffer for an answer over UDP. RFC 1035 section 4.2.1 limits answers to 512 bytes, but not every
/// server keeps to that.
const UDP_ANSWER_BYTES_MAX: usize = 4096;
/// The maximum number of addresses of one name that are kept.
const ADDRESSES_MAX: usize = 64;

/// The content of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
struct AnswerContent {
    addresses: Vec<IpAddr>,
    /// The serial number in the zone's start of authority.
    serial: Option<u32>,
    /// `true` if the answer did not fit and has to be asked for over TCP.
    truncated: bool,
}

/// The reason why an answer cannot be used.
#[derive(Debug, PartialEq, Eq)]
enum UnusableAnswer {
    /// The answer is to another question, or malformed. The right one may still come.
    Foreign,
    /// The server does not want to answer, or is not able to.
    Refused(RCODE),
}

/// Returns the addresses of a host, by the rules of resolv.conf for names; an empty list if there is no such
/// host.
///
/// # Errors
///
/// No name server gave an answer that can be used; the reason, for the log.
pub(super) fn addresses(conf: &ResolvConf, host: &str) -> Result<Vec<IpAddr>, String> {
    for name in conf.candidates(host) {
        let mut found = ask(conf, &name, TYPE::A)?.addresses;
        found.extend(ask(conf, &name, TYPE::AAAA)?.addresses);
        if !found.is_empty() {
            found.truncate(ADDRESSES_MAX);
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

/// Returns the serial number of the zone that a domain begins, or belongs to.
///
/// # Errors
///
/// No name server knows it.
pub(super) fn serial(conf: &ResolvConf, zone: &str) -> Result<u32, String> {
    ask(conf, zone, TYPE::SOA)?.serial.ok_or_else(|| "there is no such zone".to_owned())
}

/// Asks one name server after the other until one answers.
fn ask(conf: &ResolvConf, name: &str, kind: TYPE) -> Result<AnswerContent, String> {
    let mut why = String::new();
    for _ in 0..conf.attempts {
        for &server in &conf.servers {
            match ask_one(server, name, kind, conf.timeout) {
                Ok(content) => return Ok(content),
                Err(error) => why = format!("name server {server}: {error}"),
            }
        }
    }
    Err(why)
}

fn ask_one(server: SocketAddr, name: &str, kind: TYPE, timeout: Duration) -> io::Result<AnswerContent> {
    let id = random_id()?;
    let query = query(id, name, kind)?;
    let content = over_udp(server, &query, timeout, |bytes| read_answer(bytes, id, name, kind))?;
    if !content.truncated {
        return Ok(content);
    }
    let answer = over_tcp(server, &query, timeout)?;
    read_answer(&answer, id, name, kind).map_err(unusable)
}

fn random_id() -> io::Result<u16> {
    let mut id = [0; 2];
    SystemRandom::new().fill(&mut id).map_err(|_| io::Error::other("no random numbers"))?;
    Ok(u16::from_be_bytes(id))
}

fn query(id: u16, name: &str, kind: TYPE) -> io::Result<Vec<u8>> {
    let bad = |_| io::Error::new(io::ErrorKind::InvalidInput, "not a name that can be asked for");
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).map_err(bad)?;
    packet.questions.push(Question::new(name, QTYPE::TYPE(kind), QCLASS::CLASS(CLASS::IN), false));
    packet.build_bytes_vec().map_err(bad)
}

/// Reads an answer. For a name that does not exist it is empty.
fn read_answer(bytes: &[u8], id: u16, name: &str, kind: TYPE) -> Result<AnswerContent, UnusableAnswer> {
    let packet = Packet::parse(bytes).map_err(|_| UnusableAnswer::Foreign)?;
    let asked = packet.questions.first().ok_or(UnusableAnswer::Foreign)?;
    let is_ours = packet.id() == id
        && packet.has_flags(PacketFlag::RESPONSE)
        && asked.qtype == QTYPE::TYPE(kind)
        && asked.qname.to_string().eq_ignore_ascii_case(name);
    if !is_ours {
        return Err(UnusableAnswer::Foreign);
    }
    match packet.rcode() {
        RCODE::NoError | RCODE::NameError => {}
        other => return Err(UnusableAnswer::Refused(other)),
    }
    let mut content =
        AnswerContent { truncated: packet.has_flags(PacketFlag::TRUNCATION), ..AnswerContent::default() };
    for record in packet.answers.iter().filter(|record| record.class == CLASS::IN) {
        match &record.rdata {
            RData::A(a) if kind == TYPE::A => content.addresses.push(Ipv4Addr::from(a.address).into()),
            RData::AAAA(a) if kind == TYPE::AAAA => content.addresses.push(Ipv6Addr::from(a.address).into()),
            _ => {}
        }
    }
    if kind == TYPE::SOA {
        // For a domain that does not begin a zone, the server returns the start of the zone that the domain
        // belongs to, as authority.
        content.serial =
            packet.answers.iter().chain(&packet.name_servers).find_map(|record| match &record.rdata {
                RData::SOA(soa) => Some(soa.serial),
                _ => None,
            });
    }
    Ok(content)
}

fn unusable(why: UnusableAnswer) -> io::Error {
    match why {
        UnusableAnswer::Foreign => {
            io::Error::new(io::ErrorKind::InvalidData, "the answer is not to our question")
        }
        UnusableAnswer::Refused(code) => io::Error::other(format!("it answers {code:?}")),
    }
}

fn over_udp(
    server: SocketAddr,
    query: &[u8],
    timeout: Duration,
    read: impl Fn(&[u8]) -> Result<AnswerContent, UnusableAnswer>,
) -> io::Result<AnswerContent> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // The kernel chooses the port, which makes guessing it as hard as guessing the number in the question.
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    socket.send(query)?;
    let until = Instant::now() + timeout;
    let mut buffer = [0; UDP_ANSWER_BYTES_MAX];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it did not answer"));
        }
        socket.set_read_timeout(Some(left))?;
        let length = match socket.recv(&mut buffer) {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => continue,
            result => result?,
        };
        match read(&buffer[..length]) {
            Err(UnusableAnswer::Foreign) => {}
            result => return result.map_err(unusable),
        }
    }
}

fn over_tcp(server: SocketAddr, query: &[u8], timeout: Duration) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let length = u16::try_from(query.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&length.to_be_bytes()[..], query].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::{A, AAAA, SOA};

    use super::*;

    const ID: u16 = 7;

    fn reply<'a>(name: &'a str, kind: TYPE, records: Vec<RData<'a>>) -> Packet<'a> {
        let mut packet = Packet::new_reply(ID);
        packet.set_flags(PacketFlag::RESPONSE);
        let name = Name::new_unchecked(name);
        packet.questions.push(Question::new(
            name.clone(),
            QTYPE::TYPE(kind),
            QCLASS::CLASS(CLASS::IN),
            false,
        ));
        packet
            .answers
            .extend(records.into_iter().map(|data| ResourceRecord::new(name.clone(), CLASS::IN, 60, data)));
        packet
    }

    fn read(packet: &Packet<'_>, name: &str, kind: TYPE) -> Result<AnswerContent, UnusableAnswer> {
        read_answer(&packet.build_bytes_vec().unwrap(), ID, name, kind)
    }

    fn soa<'a>(serial: u32) -> RData<'a> {
        let name = || Name::new_unchecked("ns.example");
        RData::SOA(SOA { mname: name(), rname: name(), serial, refresh: 1, retry: 1, expire: 1, minimum: 1 })
    }

    #[test]
    fn addresses_of_the_kind_that_was_asked_for() {
        let four = A::from(Ipv4Addr::new(10, 0, 0, 1));
        let six = AAAA::from(Ipv6Addr::LOCALHOST);
        let packet = reply("db.example", TYPE::A, vec![RData::A(four), RData::AAAA(six.clone())]);
        let content = read(&packet, "DB.Example", TYPE::A).unwrap();
        assert_eq!(content.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        let packet = reply("db.example", TYPE::AAAA, vec![RData::AAAA(six)]);
        let content = read(&packet, "db.example", TYPE::AAAA).unwrap();
        assert_eq!(content.addresses, ["::1".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn a_serial_number_from_the_answer_or_the_authority() {
        let packet = reply("example", TYPE::SOA, vec![soa(3)]);
        assert_eq!(read(&packet, "example", TYPE::SOA).unwrap().serial, Some(3));
        let mut packet = reply("deep.example", TYPE::SOA, vec![]);
        packet.name_servers.push(ResourceRecord::new(Name::new_unchecked("example"), CLASS::IN, 60, soa(4)));
        assert_eq!(read(&packet, "deep.example", TYPE::SOA).unwrap().serial, Some(4));
        assert_eq!(
            read(&reply("example", TYPE::SOA, vec![]), "example", TYPE::SOA).unwrap(),
            AnswerContent::default()
        );
    }

    #[test]
    fn answers_to_other_questions_are_none() {
        let foreign = Err(UnusableAnswer::Foreign);
        let packet = reply("db.example", TYPE::A, vec![]);
        assert_eq!(read(&packet, "other.example", TYPE::A), foreign);
        assert_eq!(read(&packet, "db.example", TYPE::AAAA), foreign);
        let bytes = packet.build_bytes_vec().unwrap();
        assert_eq!(read_answer(&bytes, ID + 1, "db.example", TYPE::A), foreign);
        for length in 0..bytes.len() {
            assert_eq!(read_answer(&bytes[..length], ID, "db.example", TYPE::A), foreign, "{length}");
        }
        let asked = query(ID, "db.example", TYPE::A).unwrap();
        assert_eq!(read_answer(&asked, ID, "db.example", TYPE::A), foreign, "our own question");
    }

    #[test]
    fn no_such_name_is_an_answer_and_a_failure_is_none() {
        let mut packet = reply("db.example", TYPE::A, vec![]);
        *packet.rcode_mut() = RCODE::NameError;
        assert_eq!(read(&packet, "db.example", TYPE::A), Ok(AnswerContent::default()));
        *packet.rcode_mut() = RCODE::ServerFailure;
        assert_eq!(read(&packet, "db.example", TYPE::A), Err(UnusableAnswer::Refused(RCODE::ServerFailure)));
    }

    /// The parser is a library's: a panic in it would end the process.
    #[test]
    fn bytes_of_any_kind_are_no_more_than_foreign() {
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        };
        let mut packet = reply("deep.example", TYPE::SOA, vec![soa(1), RData::A(Ipv4Addr::LOCALHOST.into())]);
        packet.name_servers.push(ResourceRecord::new(
            Name::new_unchecked("a.deep.example"),
            CLASS::IN,
            60,
            soa(4),
        ));
        let good = packet.build_bytes_vec_compressed().unwrap();
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..=random(4) {
                let place = random(bytes.len());
                bytes[place] = [0, 1, 0x3f, 0xc0, 0xff, random(256).to_le_bytes()[0]][random(6)];
            }
            bytes.truncate(bytes.len() - random(8).saturating_sub(4));
            let _ = read_answer(&bytes, ID, "deep.example", TYPE::SOA);
        }
    }

    #[test]
    fn names_that_cannot_be_asked_for() {
        for name in ["x".repeat(64), "x.".repeat(200)] {
            assert!(query(ID, &name, TYPE::A).is_err(), "{name}");
        }
    }
}
