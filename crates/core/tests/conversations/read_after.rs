//! What a client says that it must see: `SET pgweir.read_after`, the startup option, and the hint `after=`.

use crate::causal_reads::{POSITION, waits_over_a_promotion};
use crate::cluster_reads::Stage;
use crate::rig::{End, be, fe};

/// PostgreSQL has run the client's SET, and its session is asked for.
fn says_after(stage: &mut Stage, client: End, primary: End, position: &str) {
    stage.rig.gets_raw(client);
    let text = format!("/* pgweir: primary */ set pgweir.read_after = '{position}'");
    stage.rig.send(client, &fe::query(&text));
    assert_eq!(stage.rig.gets(primary), [format!("Query {text}")]);
    stage.rig.send(primary, &[be::complete("SET"), be::ready('I')].concat());
    assert!(String::from_utf8_lossy(&stage.rig.raw(primary)).contains("pgweir.read_after"));
    stage.rig.send(primary, &be::answer(&[&[position]]));
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
}

/// What a client is told; ReadyForQuery is the last of it.
fn refused(stage: &mut Stage, client: End) {
    let told = stage.rig.gets(client);
    assert!(told[0].contains("22023") && told[0].contains("no position of this cluster"), "{told:?}");
    assert_eq!(told.last().map(String::as_str), Some("Ready I"));
}

#[test]
fn a_hint_says_what_its_text_must_see() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=off");
    let text = "select 1 /* pgweir: after=0/3000100 */";
    stage.asks(client, text);
    // Whether that is a position of this cluster.
    stage.tells_position(primary, "0/3000100");
    let (standby, _) = stage.server();
    stage.tells_replayed(standby, "0/30000F8");
    stage.rig.pass_us(1_000);
    stage.tells_replayed(standby, "0/3000100");
    stage.reads(client, standby, text);
    stage.rig.gets_nothing(primary);
    let further = "/* pgweir: after=00000001-0/3000101 */ select 2";
    stage.asks(client, further);
    stage.tells_replayed(standby, "0/3000100");
    stage.rig.pass_us(11_000);
    stage.tells_replayed(standby, "0/3000100");
    stage.reads(client, primary, further);
    stage.asks(client, "select 3");
    stage.reads(client, standby, "select 3");
}

#[test]
fn a_session_says_what_it_must_see() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=off");
    says_after(&mut stage, client, primary, "0/3000100");
    stage.asks(client, "select 1");
    let (standby, _) = stage.server();
    stage.tells_replayed(standby, "0/30000F8");
    stage.rig.pass_us(1_000);
    stage.tells_replayed(standby, "0/3000100");
    let asked = String::from_utf8_lossy(&stage.rig.raw(standby)).into_owned();
    assert!(asked.contains("pgweir.read_after") && asked.contains("select 1"), "{asked}");
}

#[test]
fn a_position_of_an_older_timeline_is_what_the_primary_has_now() {
    let words = "causal_reads=session causal_wait_ms=60000";
    let (mut stage, client, [primary, standby]) = waits_over_a_promotion(words, 2);
    stage.rig.send(standby, &be::answer(&[&["0/3000200"]]));
    stage.reads(client, standby, "select 1");
    let of_before = "select 2 /* pgweir: after=1-0/3009999 */";
    stage.asks(client, of_before);
    assert_eq!(stage.rig.gets(primary), [POSITION]);
    stage.rig.send(primary, &be::answer(&[&["0/3000200", "8192", "00000002"]]));
    stage.reads(client, standby, of_before);
    let of_now = "select 3 /* pgweir: after=2-0/3000200 */";
    stage.asks(client, of_now);
    stage.reads(client, standby, of_now);
}

#[test]
fn with_causal_reads_both_must_be_seen() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=session");
    let text = "select 1 /* pgweir: after=0/3000100 */";
    stage.asks(client, text);
    let (standby, _) = stage.server();
    stage.tells_replayed(standby, "0/3000100");
    stage.tells_position(primary, "0/3000200");
    stage.rig.pass_us(1_000);
    stage.tells_replayed(standby, "0/3000108");
    stage.rig.pass_us(2_000);
    stage.tells_replayed(standby, "0/3000200");
    stage.reads(client, standby, text);
}

#[test]
fn what_is_no_position_is_refused_and_the_session_goes_on() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=off");
    for position in ["nonsense", "0", "0/1-0/1"] {
        stage.asks(client, &format!("select 1 /* pgweir: after={position} */"));
        refused(&mut stage, client);
    }
    stage.rig.send(
        client,
        &[fe::parse("", "select 2 /* pgweir: after=x */"), fe::bind(""), fe::execute(), fe::sync()].concat(),
    );
    refused(&mut stage, client);
    stage.runs(client, primary, "select 3 /* pgweir: primary */", "SELECT 1", 'I');
    says_after(&mut stage, client, primary, "x");
    stage.asks(client, "select 4");
    refused(&mut stage, client);
    stage.runs(client, primary, "/* pgweir: primary */ select 5", "SELECT 1", 'I');
}

#[test]
fn a_position_far_ahead_of_the_primary_is_refused() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=off causal_wait_ms=60000");
    stage.asks(client, "select 1 /* pgweir: after=101/0 */");
    stage.tells_position(primary, "0/3000100");
    refused(&mut stage, client);
    stage.asks(client, "select 2 /* pgweir: after=101/0 */");
    refused(&mut stage, client);
    stage.asks(client, "select 3 /* pgweir: after=100/0 */");
    stage.rig.gets_nothing(client);
}
