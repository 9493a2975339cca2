//! `lag_query`: a standby tells its lag in time, and what becomes of reads if it does not.

use std::time::Duration;

use pgweir_core::mail::{Mail, Question};

use crate::cluster_reads::{CLUSTER, LAG_QUERY, Stage};
use crate::clusters::{MAIN, says};
use crate::rig::{Rig, be, fe};

fn cluster(words: &str) -> String {
    let words = format!("causal_reads=off lag_query='{LAG_QUERY}' lag_limit_ms=2000 {words}");
    CLUSTER.replace("causal_reads=off", &words)
}

/// Both standbys give this answer.
fn stage(answer: &[u8]) -> Stage {
    let mut stage = Stage::of(Rig::with(MAIN, &cluster(""), 1));
    both(&mut stage, answer);
    stage.pass_us(2_000_000);
    stage
}

fn both(stage: &mut Stage, answer: &[u8]) {
    stage.lags = [None, Some(answer.to_vec()), Some(answer.to_vec())];
}

fn gives(columns: &[Option<&[u8]>]) -> Vec<u8> {
    [be::columns(), be::row_values(columns), be::complete("SELECT 1"), be::ready('I')].concat()
}

fn seconds(text: &str) -> Vec<u8> {
    gives(&[Some(text.as_bytes())])
}

/// The nodes that get reads.
fn readers(stage: &mut Stage) -> Vec<&'static str> {
    let mut reads = |node: &&str| stage.shown(node).split(',').nth(8).expect("a column") != "0";
    ["m2", "m3"].into_iter().filter(&mut reads).collect()
}

const BOTH: [&str; 2] = ["m2", "m3"];

fn last_error(stage: &mut Stage, node: &str) -> String {
    let row = stage.shown(node);
    row.splitn(23, ',').nth(22).expect("the last column").to_owned()
}

/// lag_ms, as it is shown.
fn lag_ms(stage: &mut Stage, node: &str) -> String {
    stage.shown(node).split(',').nth(12).expect("a column").to_owned()
}

#[test]
fn each_standby_is_asked_at_each_check_and_the_primary_is_not() {
    let mut stage = stage(&seconds("0.25"));
    let before = stage.lags_asked;
    assert_eq!(before[0], 0);
    stage.pass_us(3_000_000);
    assert_eq!(stage.lags_asked, [0, before[1] + 3, before[2] + 3]);
    assert_eq!([lag_ms(&mut stage, "m2"), lag_ms(&mut stage, "m1")], ["250", "-"]);
    assert_eq!(readers(&mut stage), BOTH);
}

#[test]
fn a_standby_that_tells_too_much_gets_no_reads() {
    let mut stage = stage(&seconds("2.001"));
    assert!(readers(&mut stage).is_empty());
    assert_eq!(last_error(&mut stage, "m2"), "-");
    let (client, server, node) = stage.served("app_prefer");
    assert_eq!(node, 1);
    stage.lags[2] = Some(seconds("1"));
    stage.pass_us(1_000_000);
    assert_eq!(readers(&mut stage), ["m3"]);
    stage.rig.gets_raw(client);
    stage.rig.send(client, &fe::query("select 1"));
    assert_eq!(stage.server().1, 3);
    stage.rig.gets_nothing(server);
}

#[test]
fn what_is_no_number_of_seconds_counts_as_too_much_and_says_so() {
    let error = [be::error("42P01", "relation \"heartbeat\" does not exist"), be::ready('I')].concat();
    let two = [be::row_values(&[Some(b"1")]), be::complete("SELECT 1")].concat();
    for (answer, said) in [
        (gives(&[None]), "lag_query gives NULL"),
        (seconds("-0.001"), "lag_query gives no number of seconds that is 0 or more"),
        (seconds("00:00:01"), "lag_query gives no number of seconds that is 0 or more"),
        (gives(&[Some(b"1"), Some(b"2")]), "lag_query gives 2 columns; not one"),
        (gives(&[]), "lag_query gives 0 columns; not one"),
        ([be::complete("SELECT 0"), be::ready('I')].concat(), "lag_query gives 0 rows; not one"),
        ([two.clone(), two, be::ready('I')].concat(), "lag_query gives 2 rows; not one"),
        (error, "lag_query failed: relation \"heartbeat\" does not exist (SQLSTATE 42P01)"),
    ] {
        let mut stage = stage(&answer);
        assert_eq!(last_error(&mut stage, "m2").replace(',', ";"), said);
        assert_eq!(lag_ms(&mut stage, "m2"), "-");
        stage.pass_us(20_000_000);
        assert_eq!(stage.shown("m2").split(',').nth(4), Some("standby"), "{said}: it is not down");
        assert!(readers(&mut stage).is_empty(), "{said}");
        both(&mut stage, &seconds("1.9"));
        stage.pass_us(1_000_000);
        assert_eq!(last_error(&mut stage, "m2"), "-");
        assert_eq!(readers(&mut stage), BOTH, "{said}");
    }
}

#[test]
fn an_answer_that_does_not_come_is_no_evidence_against_the_node() {
    let mut stage = stage(&seconds("0"));
    stage.lags[1] = None;
    stage.pass_us(2_500_000);
    let asked = stage.lags_asked[1];
    assert_eq!(last_error(&mut stage, "m2"), "lag_query was not answered in time (check_timeout_ms)");
    stage.pass_us(20_000_000);
    assert!(stage.lags_asked[1] >= asked + 10, "it is asked on new connections");
    assert_eq!(stage.shown("m2").split(',').nth(4), Some("standby"));
    assert_eq!(readers(&mut stage), ["m3"]);
    // It is promoted meanwhile: its role is asked at each check.
    stage.says = [None, Some(says(false, 2, 2)), Some(says(true, 2, 3))];
    stage.pass_us(6_000_000);
    assert_eq!(stage.shown("m2").split(',').nth(4), Some("primary"));
}

#[test]
fn a_connection_that_ends_at_the_question_is_opened_again() {
    let mut stage = stage(&seconds("0"));
    let fatal = be::fatal("57P01", "terminating connection due to administrator command");
    both(&mut stage, &fatal);
    stage.pass_us(3_000_000);
    assert!(last_error(&mut stage, "m2").starts_with("lag_query was not answered"));
    both(&mut stage, &seconds("0"));
    stage.pass_us(2_000_000);
    assert_eq!(last_error(&mut stage, "m2"), "-");
    assert_eq!(readers(&mut stage), BOTH);
}

#[test]
fn a_statement_that_leaves_a_transaction_open_is_not_trusted() {
    let left =
        [be::columns(), be::row_values(&[Some(b"0")]), be::complete("SELECT 1"), be::ready('T')].concat();
    let mut stage = stage(&left);
    stage.pass_us(3_000_000);
    assert_eq!(lag_ms(&mut stage, "m2"), "-");
    assert!(readers(&mut stage).is_empty());
    assert_eq!(stage.shown("m2").split(',').nth(4), Some("standby"));
}

#[test]
fn an_answer_without_end_is_not_kept() {
    let row = be::row_values(&[Some(&[b'1'; 1000])]);
    let many = [be::columns(), row.repeat(2000), be::complete("SELECT 2000"), be::ready('I')].concat();
    let mut stage = stage(&many);
    assert!(last_error(&mut stage, "m2").starts_with("lag_query gives"));
    assert!(readers(&mut stage).is_empty());
}

#[test]
fn a_reload_changes_and_ends_the_asking() {
    let mut stage = Stage::of(Rig::with(MAIN, CLUSTER, 1));
    stage.pass_us(2_000_000);
    both(&mut stage, &seconds("5"));
    assert_eq!((readers(&mut stage), stage.lags_asked), (BOTH.to_vec(), [0; 3]));
    stage.rig.reload(MAIN, &cluster(""));
    stage.pass_us(2_000_000);
    assert!(stage.lags_asked[1] > 0);
    assert_eq!(lag_ms(&mut stage, "m2"), "5000");
    assert!(readers(&mut stage).is_empty());
    stage.rig.reload(MAIN, CLUSTER);
    stage.pass_us(1_000_000);
    let asked = stage.lags_asked;
    stage.pass_us(3_000_000);
    assert_eq!((stage.lags_asked, lag_ms(&mut stage, "m2").as_str()), (asked, "0"));
    assert_eq!(readers(&mut stage), BOTH);
}

/// The programs that are to be run, by node.
fn runs(stage: &mut Stage) -> Vec<(String, String)> {
    let questions = stage.rig.asked();
    let run = |question| match question {
        Question::MeasureLag(request) => {
            assert_eq!((&*request.cluster, request.port, request.limit.as_secs()), ("main", 5432, 3));
            Some((request.node.to_string(), format!("{} {}", request.command, request.host)))
        }
        _ => None,
    };
    let mut runs: Vec<_> = questions.into_iter().filter_map(run).collect();
    runs.sort();
    runs
}

fn ran(stage: &mut Stage, node: &str, told: Result<u64, &str>) {
    let told = told.map(Duration::from_millis).map_err(str::to_owned);
    stage.rig.mail(0, Mail::Lag { cluster: "main".into(), node: node.into(), told });
}

#[test]
fn a_program_is_run_for_each_standby_one_at_a_time() {
    let words = "causal_reads=off lag_command='/bin/lag -v' lag_command_timeout=3 lag_limit_ms=2000";
    let with = CLUSTER.replace("causal_reads=off", words);
    let mut stage = Stage::of(Rig::with(MAIN, &with, 1));
    stage.pass_us(3_000_000);
    let each = [("m2", "/bin/lag -v 10.0.0.2"), ("m3", "/bin/lag -v 10.0.0.3")];
    let each = each.map(|(node, run)| (node.to_owned(), run.to_owned()));
    assert_eq!(runs(&mut stage), each, "the first run has not ended");
    assert!(readers(&mut stage).is_empty(), "nothing is known of the lag");
    ran(&mut stage, "m2", Ok(1500));
    ran(&mut stage, "m3", Err("lag_command failed: exit status: 1"));
    assert_eq!((readers(&mut stage), lag_ms(&mut stage, "m2").as_str()), (vec!["m2"], "1500"));
    assert_eq!(last_error(&mut stage, "m3"), "lag_command failed: exit status: 1");
    stage.pass_us(1_000_000);
    assert_eq!(runs(&mut stage), each);
    ran(&mut stage, "m2", Ok(2001));
    ran(&mut stage, "m3", Ok(0));
    ran(&mut stage, "m1", Ok(0));
    ran(&mut stage, "m9", Ok(0));
    assert_eq!(readers(&mut stage), ["m3"]);
    // Without it the lag is measured again, and what comes late counts no longer.
    stage.rig.reload(MAIN, CLUSTER);
    stage.pass_us(1_000_000);
    ran(&mut stage, "m3", Err("lag_command failed"));
    assert_eq!((readers(&mut stage), last_error(&mut stage, "m3").as_str()), (BOTH.to_vec(), "-"));
}

#[test]
fn reads_go_on_without_a_primary_by_what_was_told_last() {
    let mut stage = stage(&seconds("0.1"));
    stage.says[0] = None;
    stage.pass_us(1_200_000);
    // Nothing writes the heartbeat any more.
    both(&mut stage, &seconds("60"));
    stage.pass_us(2_000_000);
    let asked = stage.lags_asked;
    stage.pass_us(3_000_000);
    assert_eq!((stage.lags_asked, lag_ms(&mut stage, "m2").as_str()), (asked, "100"));
}
