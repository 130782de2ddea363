//! The whole program on GPUs that are not there: a library stands in for NVIDIA's driver and runs the kernels on the CPU.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use cellwright_tests::archives::Tar;
use cellwright_tests::binary::{Ran, cellwright_in, root};
use cellwright_tests::server::Server;
use serde_json::Value;
use tempfile::TempDir;

/// The folder of the library, which pretends to two GPUs.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda");
    std::fs::create_dir_all(&folder).expect("a folder");
    let built = Command::new(std::env::var_os("CXX").unwrap_or("c++".into()))
        .current_dir(root())
        .args([
            "-std=c++20",
            "-O2",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-shared",
            "-fPIC",
            "-Wl,-Bsymbolic",
            "-I",
            "kernels",
            "-o",
        ])
        .arg(folder.join("libcuda.so"))
        .args(["host/backend-cuda/tests/fake/libcuda.cpp", "kernels/emulation/emulation.cpp"])
        .output()
        .expect("a C++ compiler starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    folder
});

/// Runs an example's samples on that worker; `wrong` is what is wrong with the driver.
fn run(example: &str, worker: &str, wrong: &str) -> Ran {
    let library = LIBRARY.to_str().expect("a plain name");
    let (folder, input) = (format!("examples/{example}"), format!("examples/{example}/samples.jsonl"));
    let arguments = ["run", &folder, "--input", &input, "--worker", worker, "--cache", "none"];
    cellwright_in(&[("LD_LIBRARY_PATH", library), ("FAKE_CUDA", wrong)], &arguments, "")
}

#[test]
fn every_example_is_answered_right() {
    for (example, worker) in [("digits", "cuda:0"), ("dates", "cuda:all"), ("listops", "auto")] {
        let ran = run(example, worker, "");
        assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""), "{example} on {worker}");
        let expected = std::fs::read_to_string(root().join("examples").join(example).join("expected.jsonl")).expect("what is expected");
        let read = |text: &str| -> Vec<Value> { text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect() };
        let (answers, expected) = (read(&ran.stdout), read(&expected));
        assert_eq!(answers.len(), expected.len());
        for (answer, expected) in answers.iter().zip(&expected) {
            for wanted in expected["outputs"].as_array().expect("outputs").iter().filter(|output| output["datatype"] != "FP32") {
                assert!(answer["outputs"].as_array().expect("outputs").contains(wanted), "{wanted} is not in {answer}");
            }
        }
    }
}

#[test]
fn what_a_driver_or_a_gpu_lacks_is_one_sentence() {
    for (worker, wrong, said) in [
        (
            "cuda:0",
            "old",
            "error: cannot start worker `cuda:0`: the NVIDIA driver is for CUDA 12.4; CUDA 13.0 (driver 580) or newer is needed",
        ),
        ("cuda:all", "no-device", "error: cannot start worker `cuda:all`: the NVIDIA driver finds no GPU that this process may use"),
        ("cuda:1", "turing", "error: cannot start worker `cuda:1`: Fake H200 has compute capability 7.5; 8.0 or newer is needed"),
        ("cuda:2", "", "error: there is no GPU `cuda:2`; there are: cuda:0 (Fake H200), cuda:1 (Fake H200)"),
    ] {
        let ran = run("digits", worker, wrong);
        assert_eq!((ran.status, ran.stderr.trim_end()), (Some(1), said));
    }
}

/// Wherever it happens: while models are loaded, while batches are measured, while samples run.
#[test]
fn a_gpu_that_is_lost_ends_no_process_and_keeps_nobody_waiting() {
    for launch in [1, 20, 60, 200] {
        let ran = run("dates", "cuda:0", &format!("illegal:{launch}"));
        assert_eq!(ran.status, Some(1), "launch {launch}:\n{}", ran.stderr);
        assert!(ran.stderr.contains("an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)"), "{}", ran.stderr);
    }
}

/// Over HTTP: one of two GPUs goes while clients wait, and none of them hears of it.
#[test]
fn clients_of_a_gpu_that_is_lost_are_answered_by_another() {
    let folder = TempDir::new().expect("a temporary folder");
    let lost = folder.path().join("lost");
    let wrong = format!("illegal-once:{}", lost.display());
    let script = format!("LD_LIBRARY_PATH='{}' FAKE_CUDA='{wrong}' exec \"$0\" \"$@\" --worker cuda:all", LIBRARY.display());
    let server = Server::start_by(&script, &folder.path().join("data"));
    let answer = server.upload("digits", &Tar::of(&root().join("examples/digits")).finish());
    assert_eq!(answer.status, 201, "{}", answer.text());
    let lines = |name: &str| -> Vec<Value> {
        let text = std::fs::read_to_string(root().join("examples/digits").join(name)).expect("the example's samples");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let ask = |request: &Value| {
        let answer = server.infer("digits", request);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["outputs"].clone()
    };
    let requests = lines("samples.jsonl");
    let wanted: Vec<Value> = requests.iter().map(&ask).collect();
    assert_eq!(server.figure("cellwright_replayed", "digits"), 0.0);
    std::fs::write(&lost, b"").expect("a file");
    // A GPU is lost under a task, and every task is somebody's.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| requests.iter().zip(&wanted).for_each(|(request, wanted)| assert_eq!(&ask(request), wanted)));
        }
    });
    assert_eq!(server.figure("cellwright_worker_up", ""), 1.0, "one of two is up");
    assert!(server.figure("cellwright_replayed", "digits") >= 1.0);
    assert_eq!(server.figure("nv_inference_request_failure", "digits"), 0.0);
    let said = server.said().join("\n");
    assert!(said.contains("an illegal memory access was encountered"), "{said}");
}
