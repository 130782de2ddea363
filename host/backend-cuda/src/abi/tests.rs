//! The kernels' headers, read as text, say the same as this module.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;

const HEADERS: [&str; 5] = ["abi.h", "abi_transfer.h", "abi_group.h", "abi_best.h", "abi_spans.h"];

fn text() -> String {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    let lines = HEADERS.map(|name| std::fs::read_to_string(kernels.join(name)).expect("a header of the kernels"));
    let code = lines.iter().flat_map(|text| text.lines()).map(|line| line.split("//").next().unwrap_or_default().trim_end());
    code.collect::<Vec<_>>().join("\n")
}

/// Numbers that are defined.
fn constants(text: &str) -> BTreeMap<&str, u64> {
    let number = |text: &str| {
        let text = text.trim_end_matches('u');
        text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |digits| u64::from_str_radix(digits, 16).ok())
    };
    let defined = text.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    defined.filter_map(|(name, value)| Some((name, number(value.trim())?))).collect()
}

/// Bytes of a C type.
fn size_in_c(kind: &str, structures: &BTreeMap<String, Vec<(String, usize, usize)>>) -> usize {
    match kind {
        "uint64_t" | "int64_t" => 8,
        "uint32_t" | "int32_t" | "float" => 4,
        name => structures[name].last().map_or(0, |(_, offset, size)| offset + size),
    }
}

/// Every structure as a C compiler lays it out that has nothing to pad.
fn structures_in_c(text: &str) -> BTreeMap<String, Vec<(String, usize, usize)>> {
    let constants = constants(text);
    let mut found = BTreeMap::new();
    for part in text.split("typedef struct ").skip(1) {
        let (name, rest) = part.split_once('{').expect("a structure has a body");
        let body = rest.split_once('}').expect("and an end").0;
        let (mut offset, mut fields) = (0, Vec::new());
        for field in body.split(';').map(str::trim).filter(|field| !field.is_empty()) {
            let (kind, name) = field.split_once(' ').expect("a type and a name");
            let (name, count) = match name.trim().split_once('[') {
                Some((name, count)) => {
                    let count = count.trim_end_matches(']');
                    (name, count.parse().unwrap_or_else(|_| constants[count] as usize))
                }
                None => (name.trim(), 1),
            };
            let one = size_in_c(kind, &found);
            assert!(offset % one.min(8) == 0, "{name} would be padded");
            fields.push((name.to_owned(), offset, one * count));
            offset += one * count;
        }
        assert!(offset % 8 == 0, "{name} would be padded at its end");
        found.insert(name.trim().to_owned(), fields);
    }
    found
}

#[test]
fn structures_have_the_fields_of_the_headers() {
    let text = text();
    let in_c = structures_in_c(&text);
    for (name, fields) in structures() {
        let fields: Vec<_> = fields.into_iter().map(|(name, offset, size)| (name.to_owned(), offset, size)).collect();
        let in_c: Vec<_> =
            in_c[name].iter().map(|(name, offset, size)| (if name == "type" { "kind" } else { name }.to_owned(), *offset, *size)).collect();
        assert_eq!(fields, in_c, "{name}");
    }
}

#[test]
fn numbers_are_those_of_the_headers() {
    let text = text();
    let constants = constants(&text);
    let of = |name: &str| u32::try_from(constants[name]).expect("32 bits");
    assert_eq!([of("NOWHERE"), of("PRODUCT_TERMS"), of("PRODUCT_STAGES")], [NOWHERE, PRODUCT_TERMS as u32, PRODUCT_STAGES]);
    assert_eq!(1 << of("PIECES_BIT"), PIECES);
    assert_eq!(of("TENSOR_BOX"), TENSOR_BOX);
    assert_eq!(
        [of("GROUP_AXES"), of("GROUP_SOURCES"), of("GROUP_RESULTS")].map(|count| count as usize),
        [GROUP_AXES, GROUP_SOURCES, GROUP_RESULTS]
    );
    let statuses = ["ROW_SKIPPED", "ROW_RAN", "ROW_STOPPED", "ROW_REFUSED"].map(of);
    assert_eq!(statuses, [status::SKIPPED, status::RAN, status::STOPPED, status::REFUSED]);
    assert_eq!(["INDEX", "SPAN_INDEX", "TOO_FEW"].map(|why| of(&format!("REFUSED_{why}"))), [why::INDEX, why::SPAN_INDEX, why::TOO_FEW]);
    assert_eq!(["NONE", "FLOATS", "TRUTHS"].map(|kind| of(&format!("MASK_{kind}"))), [mask::NONE, mask::FLOATS, mask::TRUTHS]);
    let flags = ["BARRIER", "SMALLEST", "LAST", "BY_WARP", "BY_BLOCK", "EXCLUSIVE", "REVERSE"].map(|flag| of(&format!("FLAG_{flag}")));
    let own = [flag::BARRIER, flag::SMALLEST, flag::LAST, flag::BY_WARP, flag::BY_BLOCK, flag::EXCLUSIVE, flag::REVERSE];
    assert_eq!(flags, own);
    assert_eq!([of("SPAN_OPERANDS"), of("SPAN_RESULTS")].map(|count| count as usize), [SPAN_OPERANDS, SPAN_RESULTS]);
    for (prefix, all) in [("OP_", op::ALL), ("SPAN_", span::ALL)] {
        for (name, number) in all {
            assert_eq!(of(&format!("{prefix}{name}")), *number, "{name}");
        }
    }
    assert_eq!(constants.keys().filter(|name| name.starts_with("OP_")).count(), op::ALL.len());
    let candidate = structures_in_c(&text)["Candidate"].iter().map(|(_, _, size)| size).sum::<usize>();
    assert_eq!((of("BEST_MOST"), candidate), (BEST_MOST, CANDIDATE_BYTES));
    for (tile, is_of_halves) in PRODUCT_TILES.into_iter().flat_map(|tile| [(tile, false), (tile, true)]) {
        let (name, row) = if is_of_halves { ("HALVES", 128) } else { ("F32", 64) };
        assert!(text.contains(&format!("#define PRODUCT_{name}_SHARED(tile) (PRODUCT_STAGES * ((tile)*{row} + 4096))")), "{name}");
        assert_eq!(product_shared(tile, is_of_halves), 4 * (tile * row + 4096));
    }
}

#[test]
fn tiles_of_warpgroups_are_those_of_the_header() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/abi.h");
    let text = std::fs::read_to_string(header).expect("a header of the kernels");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    for tile in WIDE_BF16 {
        let WideTile { name, rows: down, columns, .. } = tile;
        let row = rows.iter().find(|row| row.get(1) == Some(&name)).expect("its row in the table");
        let stages = tile.shared_bytes() / ((down + columns) * 128);
        let told = format!("{down} by {columns} {} {stages} * ({down} + {columns}) * 128", tile.threads());
        assert_eq!(row[2..].join(" "), told, "{name}");
    }
    let tiles = |tiles: &[WideTile]| tiles.iter().map(|tile| (tile.rows, tile.columns, tile.shared_bytes())).collect::<Vec<_>>();
    assert_eq!(tiles(&WIDE_F16), tiles(&WIDE_BF16));
    assert_eq!(tiles(&WIDE_BEST_BF16), tiles(&WIDE_BF16));
    assert_eq!(tiles(&WIDE_BEST_F16), tiles(&WIDE_BF16));
}

#[cfg(feature = "testing")]
#[test]
fn kernels_take_what_they_are_given() {
    use crate::driver::emulated::{Emulated, Emulation};
    use crate::driver::{Driver, Launch};

    fn sizes<A: Arguments>() -> (&'static str, usize) {
        (A::KERNEL, size_of::<A>())
    }
    let products =
        [PRODUCTS_F32, PRODUCTS_TF32, PRODUCTS_BF16, PRODUCTS_F16].into_iter().flatten().map(|name| (name, size_of::<ProductArguments>()));
    let best = [BEST_F32, BEST_TF32, BEST_BF16, BEST_F16].into_iter().flatten().map(|name| (name, size_of::<ProductBestArguments>()));
    let others = [
        sizes::<GatherArguments>(),
        sizes::<FinishArguments>(),
        sizes::<WordsArguments>(),
        sizes::<GroupArguments>(),
        sizes::<BestArguments>(),
        sizes::<LstmListArguments>(),
        sizes::<TreeListArguments>(),
        sizes::<SpanArguments>(),
        sizes::<AttentionArguments>(),
        sizes::<SpanCheckArguments>(),
    ];
    let steps = [LSTM_STEPS, LSTM_F16_STEPS, GRU_STEPS, GRU_F16_STEPS]
        .into_iter()
        .flatten()
        .map(|tile| (tile.name, size_of::<LstmStepArguments>()));
    let trees = TREE_STEPS.into_iter().chain(TREE_F16_STEPS).map(|tile| (tile.name, size_of::<TreeStepArguments>()));
    let queues = [LSTM_QUEUES, LSTM_F16_QUEUES, GRU_QUEUES, GRU_F16_QUEUES]
        .into_iter()
        .flatten()
        .map(|tile| (tile.name, size_of::<LstmQueueArguments>()));
    let wide = [WIDE_BF16.as_slice(), &WIDE_F16, &WIDE_BEST_BF16, &WIDE_BEST_F16].concat();
    let wide = wide.into_iter().map(|tile| (tile.name, size_of::<WideArguments>()));
    let mut driver = Emulated::new(&Emulation::default());
    let stream = driver.stream().expect("a stream");
    for (name, size) in products.chain(best).chain(others).chain(steps).chain(queues).chain(trees).chain(wide) {
        let kernel = driver.kernel(name).expect("the kernel is there");
        let launch = Launch { kernel, grid: [0, 1, 1], threads: 32, shared_bytes: 0, cooperative: false };
        // SAFETY: neither is queued: the one has no blocks, the other a byte too many.
        let [fits, is_wrong] =
            [size, size + 1].map(|size| unsafe { driver.launch(stream, &launch, &vec![0; size]) }.unwrap_err().to_string());
        assert!(fits.contains("grid") && is_wrong.contains("bytes of arguments"), "{name}: {fits}; {is_wrong}");
    }
}
