//! Offers requests that lie in a file, as they are, to any HTTP server: `replay ADDRESS FILE [--rate R] [--seconds S] [--connections N]`.
//!
//! The file holds whole HTTP/1.1 messages, each after its length (32 bits, little-endian). Without a rate every connection sends its next request
//! when the one before was answered. What became of them is printed as JSON. Comparisons with other servers use it, so that all of them are
//! asked by the same generator.

#![expect(clippy::print_stdout, reason = "what became of the load is what this program is for")]

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use cellwright_client::load::{Arrivals, Plan, Target, run};
use cellwright_client::{Address, Trust};

const USAGE: &str = "usage: replay ADDRESS FILE [--rate R] [--seconds S] [--connections N] [--threads N] [--seed N]";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, file, options @ ..] = &*arguments else { bail!(USAGE) };
    let address = Address::parse(address)?;
    let requests =
        read(Bytes::from(std::fs::read(file).with_context(|| file.clone())?)).with_context(|| format!("{file} holds no requests"))?;
    let target = Target { name: file.clone(), weight: 1.0, requests };
    let (measured, arrivals) = (Duration::from_secs(10), Arrivals::Closed);
    let trust = Trust::System;
    let mut plan =
        Plan { address, trust, targets: vec![target], arrivals, connections: 64, threads: 1, warm_up: Duration::ZERO, measured, seed: 1 };
    for option in options.chunks(2) {
        let [name, value] = option else { bail!(USAGE) };
        match name.as_str() {
            "--rate" => plan.arrivals = Arrivals::Poisson(value.parse()?),
            "--seconds" => plan.measured = Duration::from_secs_f64(value.parse()?),
            "--connections" => plan.connections = value.parse()?,
            "--threads" => plan.threads = value.parse()?,
            "--seed" => plan.seed = value.parse()?,
            _ => bail!(USAGE),
        }
    }
    plan.warm_up = plan.measured.mul_f64(0.2);
    println!("{}", serde_json::to_string(&run(&plan)?)?);
    Ok(())
}

/// The messages of a file; none if it is cut off, or empty.
fn read(mut bytes: Bytes) -> Option<Vec<Bytes>> {
    let mut requests = Vec::new();
    while !bytes.is_empty() {
        let length = u32::from_le_bytes(take(&mut bytes, 4)?.as_ref().try_into().ok()?);
        requests.push(take(&mut bytes, usize::try_from(length).ok()?)?);
    }
    (!requests.is_empty()).then_some(requests)
}

fn take(bytes: &mut Bytes, length: usize) -> Option<Bytes> {
    (length <= bytes.len()).then(|| bytes.split_to(length))
}
