//! Who has computes.

pub mod lab;
