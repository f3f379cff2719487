package Bench::Page;
use strict;
use warnings;
use Apache2::RequestRec ();
use Apache2::RequestIO ();
use Apache2::Response ();
use APR::Table ();
use Apache2::Const -compile => qw(OK NOT_FOUND);

my $template = <<'END_OF_TEMPLATE';
@TEMPLATE@
END_OF_TEMPLATE
chomp $template;

my %routes = (
    'GET /news' => 'news', 'GET /shop' => 'shop', 'GET /help' => 'help', 'GET /team' => 'team',
    'GET /jobs' => 'jobs', 'GET /blog' => 'blog', 'GET /docs' => 'docs', 'GET /wiki' => 'wiki',
    'POST /shop' => 'sale', 'POST /blog' => 'post',
);
my %titles = (
    news => 'Latest news', shop => "Ship stores", help => 'Helping you', team => 'Our masters',
    jobs => 'All aboard!', blog => 'The logbook', docs => 'Regulations', wiki => 'Sea stories',
    sale => 'It is yours', post => 'It is noted',
);
my %entities = ('&' => '&amp;', '<' => '&lt;', '>' => '&gt;', '"' => '&quot;', "'" => '&#39;');

sub escape { my $text = shift; $text =~ s/([&<>"'])/$entities{$1}/g; return $text }

sub handler {
    my $r = shift;
    my ($method, $path) = ($r->method, $r->uri);
    my $page = $routes{"$method $path"};
    return Apache2::Const::NOT_FOUND unless defined $page;

    my ($visits) = ($r->headers_in->get('Cookie') // '') =~ /(?:^|;\s*)visits=(\d+)/;
    $visits = ($visits // 0) + 1;

    $r->content_type('text/html; charset=utf-8');
    my $head = $r->headers_out;
    $head->set('Cache-Control' => 'private, no-cache');
    $head->set('X-Frame-Options' => 'SAMEORIGIN');
    $head->set('Set-Cookie' => "visits=$visits; Path=/; HttpOnly");

    my %values = (
        title => $titles{$page},
        heading => "$titles{$page} from the harbour",
        class => $page,
        method => $method,
        path => escape($path),
        agent => escape($r->headers_in->get('User-Agent') // 'a browser without a name'),
        canonical => "https://harbour.example$path",
        next => "$path?page=2",
        visits => $visits,
        greeting => $visits > 1 ? 'Welcome back' : 'Welcome',
    );
    (my $body = $template) =~ s/\{\{(\w+)\}\}/$values{$1}/g;
    $r->set_content_length(length $body);
    $r->print($body);
    return Apache2::Const::OK;
}
1;
