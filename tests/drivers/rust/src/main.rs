//! The driver battery for tokio-postgres: every step prints "ok <step>"; the first fault ends the program.
//!
//! Where to connect to comes from libpq's environment variables.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, TryStreamExt, future, pin_mut, stream};
use tokio_postgres::{AsyncMessage, Client, NoTls};

const RUNNING: &str = "select count(*) from pg_stat_activity
    where state = 'active' and query = 'select pg_sleep(30)' and pid <> pg_backend_pid()";

type Outcome = Result<(), Box<dyn Error>>;

fn done(step: &str) {
    println!("ok {step}");
}

fn environment(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

async fn connect(notices: Arc<Mutex<Vec<String>>>) -> Result<Client, Box<dyn Error>> {
    let mut config = tokio_postgres::Config::new();
    config.host(environment("PGHOST")).port(environment("PGPORT").parse()?);
    config.dbname(environment("PGDATABASE")).user(environment("PGUSER")).password(environment("PGPASSWORD"));
    let (client, mut connection) = config.connect(NoTls).await?;
    tokio::spawn(async move {
        let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
        while let Some(Ok(message)) = messages.next().await {
            let text = match message {
                AsyncMessage::Notice(notice) => notice.message().to_owned(),
                AsyncMessage::Notification(note) => format!("{}: {}", note.channel(), note.payload()),
                _ => continue,
            };
            notices.lock().expect("no other holder panics").push(text);
        }
    });
    Ok(client)
}

fn sqlstate<T>(result: Result<T, tokio_postgres::Error>) -> String {
    match result {
        Ok(_) => "no error".to_owned(),
        Err(fault) => fault.code().map_or_else(|| fault.to_string(), |code| code.code().to_owned()),
    }
}

async fn statements(client: &Client) -> Outcome {
    assert_eq!(client.simple_query("select 1 + 1").await?.len(), 3);
    done("simple");

    let row = client
        .query_one(
            "select $1::int, $2::text, $3::text, $4::bytea",
            &[&7_i32, &"é'\"", &None::<String>, &[0_u8, 255].as_slice()],
        )
        .await?;
    assert_eq!(
        (row.get::<_, i32>(0), row.get::<_, &str>(1), row.get::<_, Option<&str>>(2)),
        (7, "é'\"", None)
    );
    assert_eq!(row.get::<_, &[u8]>(3), [0, 255]);
    done("params");

    let other = connect(Arc::default()).await?;
    let double = client.prepare("select $1::int * 2").await?;
    let triple = other.prepare("select $1::int * 3").await?;
    for n in 0..50_i32 {
        assert_eq!(client.query_one(&double, &[&n]).await?.get::<_, i32>(0), n * 2);
        assert_eq!(other.query_one(&triple, &[&n]).await?.get::<_, i32>(0), n * 3);
    }
    done("prepared");
    Ok(())
}

async fn count(client: &Client) -> Result<i64, tokio_postgres::Error> {
    Ok(client.query_one("select count(*) from t_rust", &[]).await?.get(0))
}

async fn transactions(client: &mut Client) -> Outcome {
    client
        .batch_execute("drop table if exists t_rust; create table t_rust (n int primary key, t text)")
        .await?;
    let transaction = client.transaction().await?;
    transaction.execute("insert into t_rust values ($1, $2)", &[&1_i32, &"one"]).await?;
    transaction.commit().await?;
    assert_eq!(count(client).await?, 1);
    done("transaction");

    let transaction = client.transaction().await?;
    transaction.execute("insert into t_rust values ($1, $2)", &[&2_i32, &"two"]).await?;
    transaction.rollback().await?;
    assert_eq!(count(client).await?, 1);
    done("rollback");

    assert_eq!(
        sqlstate(client.execute("insert into t_rust values ($1, $2)", &[&1_i32, &"again"]).await),
        "23505"
    );
    assert_eq!(sqlstate(client.query("selec 1", &[]).await), "42601");
    let transaction = client.transaction().await?;
    assert_eq!(sqlstate(transaction.query("select 1 / $1::int", &[&0_i32]).await), "22012");
    assert_eq!(sqlstate(transaction.query("select 1", &[]).await), "25P02");
    transaction.rollback().await?;
    assert_eq!(count(client).await?, 1);
    done("errors");
    Ok(())
}

async fn bulk(client: &Client) -> Outcome {
    let rows =
        client.query("select g, repeat('x', 100) from generate_series(1, $1) g", &[&100_000_i32]).await?;
    assert_eq!(rows.iter().map(|row| i64::from(row.get::<_, i32>(0))).sum::<i64>(), 100_000 * 100_001 / 2);
    done("big");

    let sink = client.copy_in::<_, Bytes>("copy t_rust from stdin").await?;
    pin_mut!(sink);
    for n in 0..10_000 {
        sink.send(Bytes::from(format!("{}\t{}\n", n + 10, "y".repeat(n % 50)))).await?;
    }
    assert_eq!(sink.finish().await?, 10_000);
    let out: Vec<Bytes> =
        client.copy_out("copy (select n from t_rust order by n) to stdout").await?.try_collect().await?;
    assert_eq!(out.concat().iter().filter(|&&byte| byte == b'\n').count(), 10_001);
    done("copy");
    Ok(())
}

async fn pipeline(client: &Client) -> Outcome {
    let statement = client.prepare("select $1::int").await?;
    let numbers: Vec<i32> = (0..200).collect();
    let answers =
        future::try_join_all(numbers.iter().map(|n| async { client.query_one(&statement, &[n]).await }))
            .await?;
    assert_eq!(answers.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>(), numbers);

    let division = client.prepare("select 1 / $1::int").await?;
    let divisors = [1_i32, 0, 1];
    let answers =
        future::join_all(divisors.iter().map(|n| async { client.query_one(&division, &[n]).await })).await;
    assert_eq!(answers.into_iter().map(sqlstate).collect::<Vec<_>>(), ["no error", "22012", "no error"]);
    done("pipeline");
    Ok(())
}

async fn cancel(client: &Client) -> Outcome {
    let token = client.cancel_token();
    let canceller = tokio::spawn(async move {
        let other = connect(Arc::default()).await.map_err(|fault| fault.to_string())?;
        while other.query_one(RUNNING, &[]).await.map_err(|fault| fault.to_string())?.get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        token.cancel_query(NoTls).await.map_err(|fault| fault.to_string())
    });
    assert_eq!(sqlstate(client.query("select pg_sleep(30)", &[]).await), "57014");
    canceller.await??;
    client.query_one("select 6", &[]).await?;
    done("cancel");
    Ok(())
}

/// What a session keeps: settings, temporary tables, statements prepared by SQL, locks, cursors, channels.
async fn session(client: &Client, heard: &Mutex<Vec<String>>) -> Outcome {
    let me = format!("rust_{}", std::process::id());
    let other = connect(Arc::default()).await?;
    let setting = async |who: &Client| Ok::<String, tokio_postgres::Error>(who.query_one("show work_mem", &[]).await?.get(0));
    client.batch_execute("set work_mem = '3333kB'").await?;
    assert_eq!(setting(client).await?, "3333kB");
    assert_ne!(setting(&other).await?, "3333kB");

    client.batch_execute(&format!("create temp table t_{me} (n int); insert into t_{me} values (7)")).await?;
    let found = other.query_one(&format!("select to_regclass('t_{me}')::text"), &[]).await?;
    assert_eq!(found.get::<_, Option<String>>(0), None);
    assert_eq!(client.query_one(&format!("select n from t_{me}"), &[]).await?.get::<_, i32>(0), 7);

    client.batch_execute(&format!("prepare {me} as select 'mine'")).await?;
    assert_eq!(sqlstate(other.batch_execute(&format!("execute {me}")).await), "26000");
    client.batch_execute(&format!("execute {me}")).await?;

    client.batch_execute(&format!("select pg_advisory_lock(hashtext('{me}'))")).await?;
    let lock = async |who: &Client, function: &str| {
        let text = format!("select {function}(hashtext('{me}'))");
        Ok::<bool, tokio_postgres::Error>(who.query_one(&text, &[]).await?.get(0))
    };
    assert!(!lock(&other, "pg_try_advisory_lock").await?);
    assert!(lock(client, "pg_advisory_unlock").await?);

    client.batch_execute(&format!("declare c_{me} cursor with hold for select generate_series(1, 3)")).await?;
    assert_eq!(client.simple_query(&format!("fetch all c_{me}")).await?.len(), 5);

    client.batch_execute(&format!("listen {me}")).await?;
    other.batch_execute(&format!("notify {me}, 'hello'")).await?;
    let has_heard = || heard.lock().expect("no other holder panics").iter().any(|text| *text == format!("{me}: hello"));
    for _ in 0..400 {
        if has_heard() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(has_heard());
    let ends = format!("close c_{me}; drop table t_{me}; unlisten *; deallocate {me}");
    client.batch_execute(&ends).await?;
    client.batch_execute("reset all").await?;
    done("session");
    Ok(())
}

async fn concurrent() -> Outcome {
    let workers = (0..10).map(|who: i32| async move {
        let client = connect(Arc::default()).await?;
        let statement = client.prepare(&format!("select $1::int + {}", who % 3)).await?;
        for turn in 0..50_i32 {
            assert_eq!(client.query_one(&statement, &[&turn]).await?.get::<_, i32>(0), turn + who % 3);
        }
        Outcome::Ok(())
    });
    future::try_join_all(workers).await?;
    done("concurrent");
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let notices = Arc::new(Mutex::new(Vec::new()));
    let mut client = connect(notices.clone()).await?;
    done("connect");
    statements(&client).await?;
    transactions(&mut client).await?;
    bulk(&client).await?;

    client.batch_execute("do $$ begin raise notice 'hello'; end $$").await?;
    assert_eq!(notices.lock().expect("no other holder panics").last().map(String::as_str), Some("hello"));
    done("notices");

    pipeline(&client).await?;
    cancel(&client).await?;
    if environment("BATTERY_SESSION") == "1" {
        session(&client, &notices).await?;
    }
    concurrent().await
}
