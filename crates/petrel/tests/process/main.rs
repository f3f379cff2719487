//! The program as an operator meets it: started for real, on a free port, in a directory of its
//! own. What needs root says so and passes when there is none.

mod backends;
mod commands;
mod harness;
mod life;
mod privileges;
mod reload;
mod spawn;
