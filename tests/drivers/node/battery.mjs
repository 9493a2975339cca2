// The driver battery for node-postgres: every step prints "ok <step>"; the first fault ends the program.
//
// Where to connect to comes from libpq's environment variables.
import assert from 'node:assert/strict';
import { pipeline } from 'node:stream/promises';
import { Readable, Writable } from 'node:stream';
import pg from 'pg';
import Cursor from 'pg-cursor';
import { from as copyFrom, to as copyTo } from 'pg-copy-streams';

const RUNNING = "select count(*) from pg_stat_activity where state = 'active' and query = 'select pg_sleep(30)' and pid <> pg_backend_pid()";

const done = (step) => console.log('ok', step);
const sqlstate = (promise) => promise.then(() => 'no error', (fault) => fault.code);

async function statements(client) {
  assert.equal((await client.query('select 1 + 1 as n')).rows[0].n, 2);
  done('simple');

  const row = (await client.query('select $1::int as a, $2::text as b, $3::text as c, $4::bytea as d', [7, 'é\'"', null, Buffer.from([0, 255])])).rows[0];
  assert.deepEqual({ ...row, d: [...row.d] }, { a: 7, b: 'é\'"', c: null, d: [0, 255] });
  done('params');

  const other = new pg.Client();
  await other.connect();
  for (let n = 0; n < 50; n++) {
    const two = await client.query({ name: 'named', text: 'select $1::int * 2 as n', values: [n] });
    const three = await other.query({ name: 'named', text: 'select $1::int * 3 as n', values: [n] });
    assert.deepEqual([two.rows[0].n, three.rows[0].n], [n * 2, n * 3]);
  }
  await other.end();
  done('prepared');
}

async function transactions(client) {
  await client.query('drop table if exists t_node; create table t_node (n int primary key, t text)');
  const count = async () => Number((await client.query('select count(*) from t_node')).rows[0].count);
  await client.query('begin');
  await client.query('insert into t_node values ($1, $2)', [1, 'one']);
  await client.query('commit');
  assert.equal(await count(), 1);
  done('transaction');

  await client.query('begin');
  await client.query('insert into t_node values ($1, $2)', [2, 'two']);
  await client.query('rollback');
  assert.equal(await count(), 1);
  done('rollback');

  assert.equal(await sqlstate(client.query('insert into t_node values ($1, $2)', [1, 'again'])), '23505');
  assert.equal(await sqlstate(client.query('selec 1')), '42601');
  await client.query('begin');
  assert.equal(await sqlstate(client.query('select 1 / $1::int', [0])), '22012');
  assert.equal(await sqlstate(client.query('select 1')), '25P02');
  await client.query('rollback');
  assert.equal(await sqlstate(client.query({ name: 'bad', text: 'select * from not_there' })), '42P01');
  assert.equal(await count(), 1);
  done('errors');
}

async function bulk(client) {
  const { rows } = await client.query("select g, repeat('x', 100) from generate_series(1, $1) g", [100000]);
  assert.equal(rows.reduce((sum, row) => sum + row.g, 0), (100000 * 100001) / 2);
  await client.query('begin');
  const cursor = client.query(new Cursor('select generate_series(1, 1000) as n'));
  let seen = 0;
  for (let part = await cursor.read(300); part.length; part = await cursor.read(300)) seen += part.length;
  await cursor.close();
  await client.query('commit');
  assert.equal(seen, 1000);
  done('big');

  const lines = Array.from({ length: 10000 }, (_, n) => `${n + 10}\t${'y'.repeat(n % 50)}\n`);
  await pipeline(Readable.from(lines), client.query(copyFrom('copy t_node from stdin')));
  let out = '';
  const sink = new Writable({ write(part, _, next) { out += part; next(); } });
  await pipeline(client.query(copyTo('copy (select n from t_node order by n) to stdout')), sink);
  assert.equal(out.split('\n').length, 10002);
  done('copy');
}

async function notices(client) {
  const seen = [];
  client.on('notice', (notice) => seen.push(notice.message));
  await client.query("do $$ begin raise notice 'hello'; end $$");
  assert.deepEqual(seen, ['hello']);
  done('notices');
}

async function batch(client) {
  const answers = await Promise.all(Array.from({ length: 200 }, (_, n) => client.query('select $1::int as n', [n])));
  assert.deepEqual(answers.map((answer) => answer.rows[0].n), Array.from({ length: 200 }, (_, n) => n));
  done('pipeline');
}

async function cancel(client) {
  const sleeping = sqlstate(client.query('select pg_sleep(30)'));
  const other = new pg.Client();
  await other.connect();
  while ((await other.query(RUNNING)).rows[0].count === '0') await new Promise((resolve) => setTimeout(resolve, 20));
  await other.end();
  const canceller = new pg.Client();
  // The driver's cancel looks its target's key up by the query that is running.
  canceller.cancel(client, client.activeQuery ?? client._activeQuery);
  assert.equal(await sleeping, '57014');
  assert.equal((await client.query('select 6 as n')).rows[0].n, 6);
  done('cancel');
}

// What a session keeps: settings, temporary tables, statements prepared by SQL, locks, cursors, channels.
async function session(client) {
  const me = `node_${process.pid}`;
  const other = new pg.Client();
  await other.connect();
  const ask = async (who, sql) => Object.values((await who.query(sql)).rows[0])[0];
  await client.query("set work_mem = '3333kB'");
  assert.equal(await ask(client, 'show work_mem'), '3333kB');
  assert.notEqual(await ask(other, 'show work_mem'), '3333kB');
  await client.query(`create temp table t_${me} (n int)`);
  await client.query(`insert into t_${me} values (7)`);
  assert.equal(await ask(other, `select to_regclass('t_${me}')::text as t`), null);
  assert.equal(await ask(client, `select n from t_${me}`), 7);
  await client.query(`prepare ${me} as select 'mine' as mine`);
  assert.equal(await sqlstate(other.query(`execute ${me}`)), '26000');
  assert.equal(await ask(client, `execute ${me}`), 'mine');
  await client.query(`select pg_advisory_lock(hashtext('${me}'))`);
  assert.equal(await ask(other, `select pg_try_advisory_lock(hashtext('${me}')) as got`), false);
  assert.equal(await ask(client, `select pg_advisory_unlock(hashtext('${me}')) as had`), true);
  await client.query(`declare c_${me} cursor with hold for select generate_series(1, 3)`);
  assert.equal((await client.query(`fetch all c_${me}`)).rows.length, 3);
  const heard = new Promise((resolve) => client.once('notification', (note) => resolve(note.payload)));
  await client.query(`listen ${me}`);
  await other.query(`notify ${me}, 'hello'`);
  assert.equal(await heard, 'hello');
  for (const sql of [`close c_${me}`, `drop table t_${me}`, 'unlisten *', `deallocate ${me}`, 'reset all']) await client.query(sql);
  await other.end();
  done('session');
}

async function concurrent() {
  const pool = new pg.Pool({ max: 10 });
  await Promise.all(Array.from({ length: 10 }, async (_, who) => {
    for (let turn = 0; turn < 50; turn++) {
      const { rows } = await pool.query({ name: `q${who % 3}`, text: `select $1::int + ${who % 3} as n`, values: [turn] });
      assert.equal(rows[0].n, turn + (who % 3));
    }
  }));
  await pool.end();
  done('concurrent');
}

const client = new pg.Client();
await client.connect();
done('connect');
await statements(client);
await transactions(client);
await bulk(client);
await notices(client);
await batch(client);
await cancel(client);
if (process.env.BATTERY_SESSION === '1') await session(client);
await client.end();
await concurrent();
