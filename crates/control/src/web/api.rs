//! The JSON API, as docs/openapi.yaml describes it.

mod clusters;
mod connections;
mod live;
mod numbers;
mod overview;
mod pools;
pub(super) mod query;
mod readiness;
mod series;
mod settings;
mod statements;
mod tables;

pub(super) use readiness::{health, readiness};
pub(super) use tables::Shown;

use std::rc::Rc;

use hyper::StatusCode;
use pgweir_core::mail::Rules;
use serde_json::{Value, json};

use super::House;
use super::access::{Reader, Role, may_any_user_sign_in};
use super::reply::{Refusal, Reply, json_reply};
use query::Query;

/// Answers a reading request.
pub(super) async fn answer(
    house: &Rc<House>,
    reader: &Reader,
    path: &str,
    query: &Query,
) -> Result<Reply, Refusal> {
    let value = match path.strip_prefix("/api/v1/").unwrap_or_default() {
        "overview" => overview::overview(house, reader.sees_names()),
        "live" => return live::live(house, reader),
        "pools" => pools::pools(house, reader),
        "databases" => tables::databases(house, reader).await?,
        "users" => tables::users(house, reader).await?,
        "clients" => connections::clients(house, reader, query).await?,
        "clusters" => clusters::clusters(house, reader).await?,
        "servers" => connections::servers(house, reader, query).await?,
        "series" => series::series(house, reader, query)?,
        "statements" => statements::statements(house, reader, query).await?,
        "percentiles" => pools::percentiles(house, reader, query)?,
        "log" => {
            need_names(reader)?;
            log_lines(house)
        }
        "settings" => settings::settings(house, reader),
        _ => return Err(Refusal::NotFound("There is nothing at this address.")),
    };
    Ok(json_reply(StatusCode::OK, &value))
}

/// Returns the reader's user and rights.
pub(super) fn session(reader: &Reader, rules: &Rules) -> Value {
    json!({
        "role": match reader.role {
            Role::Anonymous => "anonymous",
            Role::Stats => "stats",
            Role::Admin => "admin",
        },
        "user": reader.user,
        "csrf": reader.csrf,
        "sees_names": reader.sees_names(),
        "may_act": reader.role == Role::Admin,
        "anonymous": rules.config.main.http_anonymous.as_str(),
        "sign_in": may_any_user_sign_in(rules),
    })
}

/// Returns the last warnings and errors.
fn log_lines(house: &House) -> Value {
    let lines = house.log.recent().into_iter().map(|line| {
        let at = line.at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        json!({ "time_s": at.as_secs_f64(), "level": crate::log::word(line.level).to_lowercase(), "message": line.message })
    });
    json!({ "lines": lines.collect::<Vec<_>>() })
}

/// Refuses an answer that consists of names to readers who may not see them.
fn need_names(reader: &Reader) -> Result<(), Refusal> {
    if reader.sees_names() { Ok(()) } else { Err(Refusal::Forbidden("Sign in to see names and statements.")) }
}
