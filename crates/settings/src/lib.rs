//! Every setting declared once; PgBouncer's ini dialect; reload as a diff
