# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_petrel_global_optspecs
    string join \n f= m= i= 1 p t D v/version V h/help
end

function __fish_petrel_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_petrel_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_petrel_using_subcommand
    set -l cmd (__fish_petrel_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c petrel -n "__fish_petrel_needs_command" -s f -d 'Read the configuration from this file' -r -F
complete -c petrel -n "__fish_petrel_needs_command" -s m -d 'Module directory: accepted and ignored, the modules are built in' -r -F
complete -c petrel -n "__fish_petrel_needs_command" -s i -d 'Stop gracefully after this many seconds without a connection' -r
complete -c petrel -n "__fish_petrel_needs_command" -s 1 -d 'Serve one request on standard input: not supported'
complete -c petrel -n "__fish_petrel_needs_command" -s p -d 'Print the effective configuration and exit'
complete -c petrel -n "__fish_petrel_needs_command" -s t -d 'Check the configuration and exit; twice: also check what start-up would need'
complete -c petrel -n "__fish_petrel_needs_command" -s D -d 'Stay in the foreground'
complete -c petrel -n "__fish_petrel_needs_command" -s v -l version -d 'Print the version and exit'
complete -c petrel -n "__fish_petrel_needs_command" -s V -d 'Print the version and the built-in features, and exit'
complete -c petrel -n "__fish_petrel_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "serve" -d 'Serve a directory, without a configuration file'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "reload" -d 'Have a running server read its configuration again, and wait until it serves the new one'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "stop" -d 'Stop a running server, and wait until it has ended'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "reopen" -d 'Have a running server open its logs again, after they were rotated'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "status" -d 'Show the server processes of a running server, with their open connections and requests'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "why" -d 'Show where the time of a request went, from the last requests that a running server has recorded'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "top" -d 'Show what a running server does: where the time of requests goes, and what holds them up'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "spawn" -d 'Start FastCGI programs, with the options of spawn-fcgi'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "fcgi-magnet" -d 'Run Lua scripts as a FastCGI program'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "fcgi-stat-accel" -d 'Read files from disk ahead of a web server, as a FastCGI program'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "lua" -d 'Run a script of mod_magnet on a made-up request, and show what it does'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "explain" -d 'Say what the server would do with a request, and why'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "plot" -d 'Draw the stage times of an access log'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "costs" -d 'Show what one request costs: its stages, and the system calls that each made'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "completions" -d 'Print a completion script for a shell'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "man" -d 'Print the manual page'
complete -c petrel -n "__fish_petrel_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c petrel -n "__fish_petrel_using_subcommand serve" -l port -d 'The TCP port; with --tls 8443 unless told' -r
complete -c petrel -n "__fish_petrel_using_subcommand serve" -l bind -d 'The address to listen on; 0.0.0.0 or :: for all' -r
complete -c petrel -n "__fish_petrel_using_subcommand serve" -l tls -d 'Serve by HTTPS, with a certificate from an authority that Petrel makes for this user'
complete -c petrel -n "__fish_petrel_using_subcommand serve" -l listing -d 'Show listings of directories that have no index file'
complete -c petrel -n "__fish_petrel_using_subcommand serve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c petrel -n "__fish_petrel_using_subcommand reload" -s f -d 'The configuration file that the server was started with' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand reload" -l socket -d 'The control socket of the server, if the configuration cannot be read: see server.control-socket' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand reload" -l now -d 'Cut requests of older configurations as soon as the new one is served'
complete -c petrel -n "__fish_petrel_using_subcommand reload" -s h -l help -d 'Print help'
complete -c petrel -n "__fish_petrel_using_subcommand stop" -s f -d 'The configuration file that the server was started with' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand stop" -l socket -d 'The control socket of the server, if the configuration cannot be read: see server.control-socket' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand stop" -l now -d 'Cut requests in progress at once'
complete -c petrel -n "__fish_petrel_using_subcommand stop" -s h -l help -d 'Print help'
complete -c petrel -n "__fish_petrel_using_subcommand reopen" -s f -d 'The configuration file that the server was started with' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand reopen" -l socket -d 'The control socket of the server, if the configuration cannot be read: see server.control-socket' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand reopen" -s h -l help -d 'Print help'
complete -c petrel -n "__fish_petrel_using_subcommand status" -s f -d 'The configuration file that the server was started with' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand status" -l socket -d 'The control socket of the server, if the configuration cannot be read: see server.control-socket' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand status" -s h -l help -d 'Print help'
complete -c petrel -n "__fish_petrel_using_subcommand why" -s f -d 'The configuration file that the server was started with' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand why" -l socket -d 'The control socket of the server, if the configuration cannot be read: see server.control-socket' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand why" -l slowest -d 'List the slowest requests of the last hour, the slowest first; of one host if it is named' -r
complete -c petrel -n "__fish_petrel_using_subcommand why" -l last -d 'List at most this many requests' -r
complete -c petrel -n "__fish_petrel_using_subcommand why" -l chrome -d 'Write all recorded requests to this file, for ui.perfetto.dev or chrome://tracing; - is standard output' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand why" -l otlp -d 'Write all recorded requests to this file, as traces of OpenTelemetry (OTLP JSON); - is standard output' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand why" -l errors -d 'List errors: the last answers with a status of 500 or more, and those of Petrel\'s own from 400 to 499'
complete -c petrel -n "__fish_petrel_using_subcommand why" -l json -d 'Print JSON'
complete -c petrel -n "__fish_petrel_using_subcommand why" -s h -l help -d 'Print help'
complete -c petrel -n "__fish_petrel_using_subcommand top" -s f -d 'The configuration file that the server was started with' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand top" -l socket -d 'The control socket of the server, if the configuration cannot be read: see server.control-socket' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand top" -l once -d 'Print all views once, as text, and exit'
complete -c petrel -n "__fish_petrel_using_subcommand top" -s h -l help -d 'Print help'
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s f -d 'Command line of the FastCGI application, for /bin/sh; ignored when APP is given' -r
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s d -d 'Change to this directory before starting the application' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s a -d 'IPv4 or IPv6 address to bind to, with -p; 0.0.0.0 unless told' -r
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s p -d 'TCP port to bind to' -r
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s s -d 'Unix domain socket to bind to' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s M -d 'Mode of the unix socket, octal; 0660 as far as the umask allows it unless told' -r
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s C -d 'PHP only: children of each process, by PHP_FCGI_CHILDREN' -r
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s F -d 'Processes to start' -r
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s b -d 'Length of the queue of connections that are not accepted yet' -r
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s P -d 'File that the process ids are written to, one a line; not with -n' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s c -d 'Root directory of the application; a unix socket is made below it' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s u -d 'User of the application, name or number; never root' -r
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s g -d 'Group of the application; that of the user unless told' -r
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s U -d 'User that the unix socket belongs to; that of -u unless told' -r
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s G -d 'Group that the unix socket belongs to; that of -U, else of -g, unless told' -r
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s n -d 'Become the application instead of starting a process, for supervisors'
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s v -d 'Print the version and exit'
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s ? -d 'Print help'
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s S -d 'Make the unix socket outside of the root directory that -c names'
complete -c petrel -n "__fish_petrel_using_subcommand spawn" -s h -l help -d 'Print help'
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-magnet" -l socket -d 'Listen on this unix socket' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-magnet" -l mode -d 'Mode of the unix socket, octal; what the umask leaves of 0777 unless told' -r
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-magnet" -l listen -d 'Listen on this TCP address. Every client that can connect can run any script: see --root' -r
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-magnet" -l workers -d 'Threads that run scripts' -r
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-magnet" -l root -d 'Run only scripts below this directory, after symbolic links are resolved' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-magnet" -l max-run-time -d 'Processor time, in milliseconds, that a script may take between two waits' -r
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-magnet" -l max-run-memory -d 'Memory, in MiB, that a script may take between two waits' -r
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-magnet" -l max-request-time -d 'Seconds that a request may take, waiting included' -r
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-magnet" -l max-body -d 'The longest body of a request, in MiB' -r
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-magnet" -l allow -d 'Libraries that scripts may use although these can break the program; a list with commas' -r -f -a "ffi\t'`ffi` and `string.buffer`'
jit\t'`jit`'
debug\t'All of `debug`'
os.exit\t'`os.exit`'
io.popen\t'`io.popen` and `os.execute`'"
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-magnet" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-stat-accel" -l port -d 'Listen on this TCP port. Every client that can connect learns which files exist: see --document-root' -r
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-stat-accel" -l address -d 'The address to listen on, with --port' -r
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-stat-accel" -l socket -d 'Listen on this unix socket' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-stat-accel" -l mode -d 'Mode of the unix socket, octal; what the umask leaves of 0777 unless told' -r
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-stat-accel" -l threads -d 'Threads that wait for disks' -r
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-stat-accel" -l read-ahead -d 'Bytes at the beginning of a file that are read' -r
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-stat-accel" -l document-root -d 'Name only files below this directory, after symbolic links are resolved; may be given again. Unless told, below the DOCUMENT_ROOT of the request' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-stat-accel" -l timeout -d 'Seconds that a request may take' -r
complete -c petrel -n "__fish_petrel_using_subcommand fcgi-stat-accel" -s h -l help -d 'Print help'
complete -c petrel -n "__fish_petrel_using_subcommand lua" -l url -d 'The URL of the request: a path, with a query' -r
complete -c petrel -n "__fish_petrel_using_subcommand lua" -l method -d 'The request method' -r
complete -c petrel -n "__fish_petrel_using_subcommand lua" -l header -d 'A field of the request, such as \'Accept: text/html\'; may be given again' -r
complete -c petrel -n "__fish_petrel_using_subcommand lua" -l body -d 'A file with the body of the request' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand lua" -l hook -d 'When the script runs' -r -f -a "raw-url\t'`magnet.attract-raw-url-to`'
physical-path\t'`magnet.attract-physical-path-to`'
response-start\t'`magnet.attract-response-start-to`'"
complete -c petrel -n "__fish_petrel_using_subcommand lua" -l root -d 'The document root' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand lua" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c petrel -n "__fish_petrel_using_subcommand explain" -s f -d 'The configuration' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand explain" -s X -l method -d 'The request method' -r
complete -c petrel -n "__fish_petrel_using_subcommand explain" -s H -l header -d 'A field of the request, such as \'Accept: text/html\'; may be given again' -r
complete -c petrel -n "__fish_petrel_using_subcommand explain" -l client -d 'The IP address of the client' -r
complete -c petrel -n "__fish_petrel_using_subcommand explain" -l all -d 'Show all conditions, and all directives with their defaults'
complete -c petrel -n "__fish_petrel_using_subcommand explain" -l json -d 'Print a JSON object for each URL, one on a line'
complete -c petrel -n "__fish_petrel_using_subcommand explain" -l run-scripts -d 'Run the Lua scripts of the configuration, which can do anything'
complete -c petrel -n "__fish_petrel_using_subcommand explain" -s h -l help -d 'Print help'
complete -c petrel -n "__fish_petrel_using_subcommand plot" -s o -d 'Write the drawing, which is SVG, to this file; to standard output unless told' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand plot" -l by -d 'Draw only this: stage times over time, percentiles of each stage, or the routes; all of them and the slowest requests unless told' -r -f -a "stage\t'Percentiles of each stage'
route\t'The mean stage times of each route'
time\t'The mean stage times over time'"
complete -c petrel -n "__fish_petrel_using_subcommand plot" -l format -d 'The value of accesslog.format; or json, or timing for lines of debug.log-timing' -r
complete -c petrel -n "__fish_petrel_using_subcommand plot" -s f -d 'Take the format from this configuration' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand plot" -l gnuplot -d 'Write data and a script for gnuplot to this directory, in the manner of lighttpd 1.5' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand plot" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c petrel -n "__fish_petrel_using_subcommand costs" -s f -d 'The configuration file' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand costs" -l compare -d 'Another URL to compare with' -r
complete -c petrel -n "__fish_petrel_using_subcommand costs" -l svg -d 'Also write a picture to this file' -r -F
complete -c petrel -n "__fish_petrel_using_subcommand costs" -s X -d 'The request method' -r
complete -c petrel -n "__fish_petrel_using_subcommand costs" -s H -d 'A field of the request, such as \'Accept: text/html\'; may be given again' -r
complete -c petrel -n "__fish_petrel_using_subcommand costs" -l json -d 'Print JSON'
complete -c petrel -n "__fish_petrel_using_subcommand costs" -s h -l help -d 'Print help'
complete -c petrel -n "__fish_petrel_using_subcommand completions" -s h -l help -d 'Print help'
complete -c petrel -n "__fish_petrel_using_subcommand man" -s h -l help -d 'Print help'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "serve" -d 'Serve a directory, without a configuration file'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "reload" -d 'Have a running server read its configuration again, and wait until it serves the new one'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "stop" -d 'Stop a running server, and wait until it has ended'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "reopen" -d 'Have a running server open its logs again, after they were rotated'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "status" -d 'Show the server processes of a running server, with their open connections and requests'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "why" -d 'Show where the time of a request went, from the last requests that a running server has recorded'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "top" -d 'Show what a running server does: where the time of requests goes, and what holds them up'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "spawn" -d 'Start FastCGI programs, with the options of spawn-fcgi'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "fcgi-magnet" -d 'Run Lua scripts as a FastCGI program'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "fcgi-stat-accel" -d 'Read files from disk ahead of a web server, as a FastCGI program'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "lua" -d 'Run a script of mod_magnet on a made-up request, and show what it does'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "explain" -d 'Say what the server would do with a request, and why'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "plot" -d 'Draw the stage times of an access log'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "costs" -d 'Show what one request costs: its stages, and the system calls that each made'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "completions" -d 'Print a completion script for a shell'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "man" -d 'Print the manual page'
complete -c petrel -n "__fish_petrel_using_subcommand help; and not __fish_seen_subcommand_from serve reload stop reopen status why top spawn fcgi-magnet fcgi-stat-accel lua explain plot costs completions man help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
