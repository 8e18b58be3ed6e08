//! Compiles the schema without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(
        [
            "proto/leasehold/v1/leasehold.proto",
            "proto/leasehold/v1/peer.proto",
        ],
        ["proto"],
    )?;
    tonic_prost_build::configure()
        .bytes(".leasehold.v1.RaftMessage")
        .compile_fds(files)?;
    Ok(())
}
