use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::operate::top::model::{Reading, Row};
use crate::operate::top::once::text;
use crate::operate::top::view::Key;

fn pool(database: &str, user: &str, waiting: &str, wait: &str, failure: &str) -> Row {
    Row::of(&[
        ("database", database),
        ("user", user),
        ("cl_active", "60"),
        ("cl_waiting", waiting),
        ("sv_active", "20"),
        ("sv_pinned", "1"),
        ("maxwait", wait),
        ("maxwait_us", "200000"),
        ("pool_mode", "transaction"),
        ("connect_failure", failure),
    ])
}

fn client(id: &str, state: &str, wait: &str, age: &str, name: &str) -> Row {
    Row::of(&[
        ("id", id),
        ("state", state),
        ("wait", wait),
        ("transaction_us", age),
        ("database", "shop"),
        ("user", "alice"),
        ("application_name", name),
        ("addr", "10.0.0.7"),
        ("port", "41000"),
        ("ptr", id),
    ])
}

fn server(pid: &str, link: &str) -> Row {
    let place = [("database", "shop"), ("addr", "10.0.0.1"), ("port", "5432")];
    Row::of(&[&[("remote_pid", pid), ("state", "active"), ("link", link), ("ptr", pid)][..], &place].concat())
}

fn statement(query: &str, calls: u64, total_us: u64) -> Row {
    Row::of(&[
        ("database", "shop"),
        ("user", "alice"),
        ("query", query),
        ("calls", &calls.to_string()),
        ("total_us", &total_us.to_string()),
        ("wait_us", &(total_us / 4).to_string()),
        ("rows", &calls.to_string()),
    ])
}

fn node(name: &str, role: &str, lag: &str, share: &str, reads: u64) -> Row {
    Row::of(&[
        ("cluster", "main"),
        ("node", name),
        ("role", role),
        ("state", role),
        ("lag_ms", lag),
        ("share", share),
        ("switch", "attached"),
        ("reads", &reads.to_string()),
        ("host", "10.0.0.1"),
        ("port", "5432"),
    ])
}

/// A reading of a pooler under load; its totals are those of the first reading times `factor`.
fn reading(seconds: u64, factor: u64) -> Reading {
    let number = |value: u64| (value * factor).to_string();
    let database = |name: &str| Row::of(&[("name", name), ("host", "10.0.0.1"), ("pool_size", "20")]);
    Reading {
        taken: Duration::from_secs(seconds),
        pools: vec![
            pool("reports", "bob", "0", "0", ""),
            pool("shop", "alice", "12", "3", ""),
            pool("old", "carol", "2", "0", "Connection refused"),
        ],
        databases: ["shop", "reports", "old"].map(database).to_vec(),
        stats: vec![Row::of(&[
            ("total_query_count", &number(7000)),
            ("total_query_time", &number(14_000_000)),
            ("total_xact_count", &number(3000)),
            ("total_xact_time", &number(1_000_000)),
            ("total_wait_time", "0"),
            ("total_received", &number(2_400_000)),
            ("total_sent", &number(9_000_000)),
        ])],
        statements: vec![
            statement(
                "select abalance from pgbench_accounts where aid = $1",
                6000 * factor,
                4_000_000 * factor,
            ),
            statement(
                "update pgbench_accounts set abalance = abalance + $1 where aid = $2",
                800 * factor,
                9_000_000 * factor,
            ),
        ],
        nodes: vec![
            node("m1", "primary", "", "0", 1000 * factor),
            node("m2", "standby", "12", "1000", 1000 * factor),
            node("m3", "standby", "0", "3000", 1000 * factor),
        ],
        clients: Some(vec![
            client("7", "active", "0", "9000000", "checkout"),
            client("8", "waiting", "3", "0", "web\u{1b}[31m"),
            client("9", "idle", "0", "0", "psql"),
        ]),
        servers: Some(vec![server("4711", "7"), server("4712", "")]),
        ..Reading::default()
    }
}

/// Two readings of a pooler under load, two seconds apart.
fn picture() -> Picture {
    Picture::new(Some(&reading(10, 1)), &reading(12, 2), 500)
}

/// The screen of this size after these keys.
fn screen(width: u16, height: u16, keys: &[Key]) -> String {
    let mut view = View::new(true);
    let picture = picture();
    for key in keys {
        view.key(*key, &picture);
    }
    drawn(width, height, &Scene { view: &view, picture: Some(&picture), ..scene(&view) })
}

fn scene(view: &View) -> Scene<'_> {
    Scene {
        view,
        picture: None,
        place: "10.0.0.9:6432",
        user: "admin",
        lost: None,
        age: Duration::from_millis(300),
        interval: Duration::from_secs(2),
        pending: &[],
        is_plain: false,
    }
}

fn drawn(width: u16, height: u16, scene: &Scene) -> String {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| {
        draw(frame, scene);
    });
    text(terminal.backend())
}

/// The place of a text on the screen.
fn line_of(screen: &str, text: &str) -> usize {
    screen.lines().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text:?} in\n{screen}"))
}

#[test]
fn the_overview_fits_in_80_columns() {
    let screen = screen(80, 24, &[]);
    let order = [
        "pgweir top  10.0.0.9:6432 as admin",
        "14 clients wait, the longest for 3.2 s",
        "old: cannot connect: Connection refused, 2 clients waiting",
        "> check host, port and password",
        "shop: all 20 servers are busy (1 idle in transaction, 1 kept by their client),",
        "  12 clients waiting",
        "> end transactions sooner, or raise pool_size",
        "Clients  3: 1 waiting, 1 idle in transaction, 1 idle",
        "Servers  60: 60 active",
        "Rates    3500 statements/s, mean 2.0 ms, 1500 tx/s, in 1.2 MB/s",
        " 1 Overview ",
        "shop           alice        3.2 s      12",
        "main.m1        primary",
        "main.m2        standby  standby       12 ms   25 %",
        "4.50     400",
        "q quit h help Enter more / filter s sort p pause r resume c reconnect k kill",
    ];
    let places: Vec<usize> = order.iter().map(|text| line_of(&screen, text)).collect();
    assert!(places.is_sorted(), "{places:?}\n{screen}");
    assert!(!screen.contains("APPLICATION"), "there is no room for clients");
    assert!(screen.lines().count() <= 24 && screen.lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn a_wide_screen_shows_more_columns_and_tables() {
    let screen = screen(160, 50, &[]);
    for text in [
        "MODE",
        "KEPT",
        "KEEPS SERVER FOR",
        "ROWS/S",
        "READS/S",
        "checkout",
        "update pgbench_accounts set abalance = abalance + $1 where aid = $2",
    ] {
        line_of(&screen, text);
    }
    assert!(
        line_of(&screen, "old: cannot connect") == line_of(&screen, "> check host, port and password"),
        "{screen}"
    );
}

#[test]
fn each_view_has_its_table() {
    for (digit, texts) in [
        ('2', &["all servers busy", "cannot connect", "20/20"][..]),
        ('3', &["idle tx", "9.0 s", "10.0.0.7:41000"]),
        ('4', &["4711", "BUSY"]),
        ('5', &["CALLS/S", "3000", "25 %"]),
        ('6', &["READS/S", "500", "75 %"]),
    ] {
        for (width, height) in [(80, 24), (160, 50)] {
            let screen = screen(width, height, &[Key::Char(digit)]);
            for text in texts {
                let _ = (text == &"10.0.0.7:41000" && width == 80) || line_of(&screen, text) > 0;
            }
        }
    }
    let clients = screen(160, 50, &[Key::Char('3')]);
    assert!(!clients.contains('\u{1b}'), "a client's name cannot steer the terminal");
    assert!(line_of(&clients, "waiting ") < line_of(&clients, "idle tx "), "the longest wait is first");
}

#[test]
fn a_question_says_what_is_done_to_what() {
    let question = screen(80, 24, &[Key::Char('3'), Key::Char('k')]);
    for text in ["Disconnect client 8 (alice@shop, web [31m)?", "KILL_CLIENT 8", "y yes, send it"] {
        line_of(&question, text);
    }
    line_of(&screen(80, 24, &[Key::Char('6')]), "w switchover");
    let refused = screen(80, 24, &[Key::Char('3'), Key::Char('k'), Key::Char('n')]);
    line_of(&refused, "KILL_CLIENT 8: not sent");
}

#[test]
fn details_and_help_lie_above_the_table() {
    let details = screen(80, 24, &[Key::Char('5'), Key::Enter]);
    line_of(&details, "query ");
    line_of(&details, "total_us");
    line_of(&details, "calls per second");
    line_of(&screen(80, 24, &[Key::Char('?')]), "disconnect the client");
    let moved = screen(80, 24, &[Key::Char('5'), Key::Enter, Key::Down, Key::Down, Key::Down]);
    assert!(!moved.contains("query "), "{moved}");
}

#[test]
fn a_lost_console_is_shown_with_the_last_reading() {
    let (view, picture) = (View::new(false), picture());
    let lost = Scene { picture: Some(&picture), lost: Some("Connection refused"), ..scene(&view) };
    let screen = drawn(80, 24, &lost);
    assert_eq!(line_of(&screen, "LOST 300 ms ago, trying again: Connection refused"), 0);
    line_of(&screen, "14 clients wait");
    let late = Scene { picture: Some(&picture), age: Duration::from_secs(9), ..scene(&view) };
    line_of(&drawn(80, 24, &late), "no answer for 9.0 s");
    line_of(&drawn(80, 24, &scene(&view)), "who may only look");
    line_of(&drawn(80, 24, &scene(&view)), "reading the console ...");
}

#[test]
fn a_screen_of_any_size_is_drawn() {
    let keys = [Key::Char('3'), Key::Char('k')];
    for (width, height) in [(1, 1), (5, 3), (20, 6), (79, 2), (300, 100)] {
        screen(width, height, &keys);
        screen(width, height, &[]);
        screen(width, height, &[Key::Char('?')]);
    }
}

#[test]
fn plain_text_has_no_keys() {
    let (view, picture) = (View::new(true), picture());
    let page = drawn(80, 24, &Scene { picture: Some(&picture), is_plain: true, ..scene(&view) });
    assert_eq!(wrapped("aa bb cc dddddd", 5), ["aa bb", "cc", "dddddd"]);
    assert!(
        page.contains("14 clients wait") && !page.contains("quit") && !page.contains("2 Pools"),
        "{page}"
    );
}
