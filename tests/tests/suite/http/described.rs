//! The description of the API says what the API does.

use serde_json::Value;

use cellwright_tests::bundle_folder::BundleFolder;

use super::harness::Running;

#[test]
fn every_described_operation_is_there_and_answers_as_described() {
    let server = Running::start();
    let document = server.get("/openapi.json").json();
    let mut seen = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            // Whoever makes a key locks the others out.
            if (path.as_str(), method.as_str()) == ("/v1/keys", "post") {
                continue;
            }
            // Those before it may have deleted it.
            server.has("sums", &BundleFolder::summing());
            let filled = path.replace("{model}", "sums").replace("{version}", "1").replace("{tenant}", "acme").replace("{key}", "k");
            let answer = server.send(&method.to_uppercase(), &filled, &[], b"{}");
            let described = operation["responses"].get(answer.status.to_string());
            assert!(described.is_some(), "{method} {path} answers {}: {}", answer.status, answer.text());
            assert!(!answer.text().contains("there is nothing at"), "{method} {path} is not served");
            check_media(described.unwrap(), answer.header("content-type"), path);
            seen += 1;
        }
    }
    assert!(seen > 35, "{seen}");
}

fn check_media(described: &Value, found: Option<&str>, path: &str) {
    let Some(content) = described["content"].as_object() else { return };
    let found = found.and_then(|found| found.split(';').next()).unwrap_or_default();
    assert!(content.contains_key(found), "{path} answers {found}");
}

#[test]
fn the_page_for_people_stands_alone() {
    let server = Running::start();
    let page = server.get("/docs");
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    let text = page.text();
    assert!(text.contains("/v2/models/{model}/infer") && text.contains("InferRequest"));
    assert!(!text.contains("src=") && !text.contains("http://") && !text.contains("https://"), "the page loads from elsewhere");
}
