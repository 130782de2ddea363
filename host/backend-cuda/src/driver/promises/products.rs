//! What is promised of a library of products, by drivers that have one.

use super::{Make, await_word, good, refused};
use crate::driver::products::{ProductOperands, ProductPlan, ProductShape};
use crate::driver::{DeviceAddress, Driver, GraphLaunch, Launch, Stream};

/// More than any of the products here wants.
const WORKSPACE_BYTES: usize = 32 << 20;

/// A whole number, as bf16 has it.
fn half(number: i32) -> [u8; 2] {
    [(number as f32).to_bits().to_le_bytes()[2], (number as f32).to_bits().to_le_bytes()[3]]
}

/// What lies at a place of a matrix: small whole numbers, so that sums are exact in any order.
fn number(row: u32, column: u32) -> i32 {
    ((row * 7 + column * 3) % 11) as i32 - 5
}

fn matrix(rows: u32, columns: u32) -> Vec<u8> {
    (0..rows).flat_map(|row| (0..columns).flat_map(move |column| half(number(row, column)))).collect()
}

/// Of x and W as [`matrix`] makes them.
fn expected(ProductShape { rows, k, n }: ProductShape) -> Vec<f32> {
    let sum = |row: u32, column: u32| (0..k).map(|at| number(row, at) * number(column, at)).sum::<i32>() as f32;
    (0..rows).flat_map(|row| (0..n).map(move |column| sum(row, column))).collect()
}

fn read(driver: &mut dyn Driver, stream: Stream, at: DeviceAddress, bytes: usize) -> Vec<f32> {
    let mut read = vec![0; bytes];
    good(driver.read(stream, at, &mut read));
    read.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// A product is computed at its place in its stream, by every plan that is given for it, and in a graph between launches, each time that it is launched.
pub(super) fn products(make: &mut Make<'_>) {
    let mut driver = make();
    let driver = driver.as_mut();
    if let Err(why) = driver.products() {
        tracing::info!("no products are looked at, because {why}");
        return;
    }
    let (stream, workspace, word) = (good(driver.stream()), good(driver.allocate(WORKSPACE_BYTES)), good(driver.pinned(8)));
    let mut value = 0;
    for (rows, k, n) in [(1, 8, 4), (5, 64, 36), (70, 40, 132), (128, 256, 64)] {
        let shape = ProductShape { rows, k, n };
        let [x, weights, y] = shape.bytes().unwrap_or_default().map(|bytes| good(driver.allocate(bytes)));
        good(driver.write(stream, x, &matrix(rows, k)));
        good(driver.write(stream, weights, &matrix(n, k)));
        let operands = ProductOperands { x, weights, y, workspace };
        let bytes = rows as usize * n as usize * 4;
        let plans = good(products_of(driver).plans(shape, WORKSPACE_BYTES));
        assert!(!plans.is_empty(), "there is no way to compute {shape:?}");
        let kernel = good(driver.kernel("fill"));
        // Both are of one word: in front of the sums the first, behind them the last.
        let fill = |at: DeviceAddress, value: u32| GraphLaunch {
            launch: Launch { kernel, grid: [1, 1, 1], threads: 128, shared_bytes: 0, cooperative: false },
            arguments: [at.0, 1, u64::from(value)].map(u64::to_ne_bytes).concat(),
        };
        let sevens = [fill(y, 7.0_f32.to_bits())];
        let last = y.plus(bytes - 4);
        let eights = [fill(last, 8.0_f32.to_bits())];
        for plan in plans {
            good(driver.zero(stream, y, bytes));
            // SAFETY: so much was allocated, and lies there to the end.
            good(unsafe { products_of(driver).multiply(stream, plan, &operands) });
            let mut wanted = expected(shape);
            assert!(read(driver, stream, y, bytes) == wanted, "{shape:?} is not what its plan leaves");
            // SAFETY: as above.
            let graph = good(unsafe { products_of(driver).graph(&sevens, (plan, &operands), &eights) });
            if let Some(last) = wanted.last_mut() {
                *last = 8.0;
            }
            for _ in 0..3 {
                good(driver.zero(stream, y, bytes));
                // SAFETY: as above.
                good(unsafe { driver.launch_graph(stream, graph) });
                value += 1;
                good(driver.signal(stream, &word, 0, value));
                good(await_word(driver, &word, 0, value));
                assert!(read(driver, stream, y, bytes) == wanted, "{shape:?} is not what its graph leaves");
            }
            good(driver.release_graph(graph));
        }
    }
    for (rows, k, n) in [(0, 8, 4), (1, 0, 4), (1, 8, 0), (1, 12, 4), (1, 8, 6)] {
        refused("a product of no such shape", products_of(driver).plans(ProductShape { rows, k, n }, WORKSPACE_BYTES));
    }
    let nowhere = ProductOperands::default();
    // SAFETY: it is not to run.
    refused("a plan of another driver", unsafe { products_of(driver).multiply(stream, ProductPlan(1 << 20), &nowhere) });
    // SAFETY: as above. Whatever captured it for a graph takes others afterwards.
    refused("a plan of another driver", unsafe { products_of(driver).graph(&[], (ProductPlan(1 << 20), &nowhere), &[]) });
    let kernel = good(driver.kernel("fill"));
    let together = Launch { kernel, grid: [1, 1, 1], threads: 128, shared_bytes: 0, cooperative: true };
    let together = GraphLaunch { launch: together, arguments: vec![0; 24] };
    // SAFETY: as above.
    refused("a cooperative launch", unsafe { products_of(driver).graph(&[together], (ProductPlan(0), &nowhere), &[]) });
    let shape = ProductShape { rows: 1, k: 8, n: 4 };
    let [x, weights, y] = shape.bytes().unwrap_or_default().map(|bytes| good(driver.allocate(bytes)));
    let plans = good(products_of(driver).plans(shape, WORKSPACE_BYTES));
    // SAFETY: as above.
    good(unsafe { products_of(driver).graph(&[], (plans[0], &ProductOperands { x, weights, y, workspace }), &[]) });
}

fn products_of(driver: &mut dyn Driver) -> &mut dyn crate::driver::Products {
    driver.products().unwrap_or_else(|why| panic!("the library of products is gone, because {why}"))
}
