package Bench::Print;
use strict;
use warnings;
use Apache2::RequestRec ();
use Apache2::RequestIO ();
use Apache2::Const -compile => 'OK';

sub handler {
    my $r = shift;
    $r->content_type('text/html');
    $r->print('123');
    return Apache2::Const::OK;
}
1;
