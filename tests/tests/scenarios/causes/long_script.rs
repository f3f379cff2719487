use super::{Told, Version, site};

#[test]
fn a_script_that_runs_for_long() {
    for version in Version::BOTH {
        let server = site()
            .file(
                "busy.lua",
                "local begin = os.clock()\nwhile os.clock() - begin < 0.2 do end\n",
            )
            .config("server.modules += (\"mod_magnet\")\nlua.max-run-time = 5000")
            .config("magnet.attract-raw-url-to = (var.dir + \"/busy.lua\")")
            .start();
        version.ask(&server, "/a.txt", &[]);
        let told = Told::about(&server, "/a.txt");
        assert!(told.time("lua") >= super::TOLD_MIN, "{}", told.line);
    }
}
