package Book::News;
use strict;
use warnings;
use Apache2::RequestRec ();
use Apache2::RequestIO ();
use Apache2::Const -compile => 'OK';

sub handler {
    my $r = shift;
    my @sections = split "/", $r->uri;
    $r->content_type('text/plain');
    print "Story matching @sections\n";
    return Apache2::Const::OK;
}

package Book::Trans;
use strict;
use warnings;
use Apache2::Const -compile => qw(OK DECLINED);

sub handler {
    my $r = shift;
    return Apache2::Const::OK if $r->uri =~ m|^/news|;
    return Apache2::Const::DECLINED;
}
1;
