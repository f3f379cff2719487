//! Access logs with stage times: reads them, sums them up, and draws them as SVG or for gnuplot.
//!
//! `petrel plot` and `petrel-bench` use it. It knows no server and no configuration: the names of the stages
//! come in as an argument, and unknown names in a log are stages, too. Memory does not grow with the log:
//! times are summed up in [`summary::Summary`] line by line. No line makes it panic; lines that it does not
//! understand are counted.
//!
//! | module | what it knows |
//! |---|---|
//! | [`mod@format`] | lines in a format of `accesslog.format` |
//! | [`mod@line`] | what a line tells: of a format, of JSON, of `debug.log-timing` |
//! | [`time`] | the times in a line |
//! | [`histogram`], [`summary`] | sums and percentiles |
//! | [`svg`], [`chart`] | the drawing |
//! | [`gnuplot`] | data and a script for gnuplot |
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod chart;
pub mod format;
pub mod gnuplot;
pub mod histogram;
pub mod line;
pub mod summary;
pub mod svg;
pub mod time;
